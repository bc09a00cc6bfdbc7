#include "common/formats/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

// Copies ids that are below `vocab` and returns how many came before the first that is not.
template <typename Id>
size_t CopyIds(absl::Span<const std::byte> bytes, int64_t vocab, absl::Span<int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t id = LoadLittleEndian<Id>(bytes, i * sizeof(Id));
    if (id >= vocab || id > INT32_MAX) return i;
    ids[i] = static_cast<int32_t>(id);
  }
  return ids.size();
}

// Read, not mapped: a file that somebody cuts short while a run reads it is an error, and not a signal that ends the
// daemon.
class OpenTokenFile final : public TokenFile {
 public:
  OpenTokenFile(std::string path, FileDescriptor file, int64_t num_bytes, int token_bytes)
      : path_(std::move(path)), file_(std::move(file)), num_bytes_(num_bytes), token_bytes_(token_bytes) {}

  int64_t num_tokens() const override { return num_bytes_ / token_bytes_; }

  absl::Status Read(int64_t first, int64_t vocab, absl::Span<int32_t> ids) const override {
    const auto count = static_cast<int64_t>(ids.size());
    if (first < 0 || count > num_tokens() || first > num_tokens() - count) {
      return absl::OutOfRangeError(
          absl::StrCat("\"", path_, "\": tokens ", first, " to ", first, " + ", count, " of ", num_tokens()));
    }
    std::vector<std::byte> bytes(static_cast<size_t>(count * token_bytes_));
    EPS_RETURN_IF_ERROR(ReadBytes(first * token_bytes_, absl::MakeSpan(bytes)));
    const size_t good = token_bytes_ == 1   ? CopyIds<uint8_t>(bytes, vocab, ids)
                        : token_bytes_ == 2 ? CopyIds<uint16_t>(bytes, vocab, ids)
                                            : CopyIds<uint32_t>(bytes, vocab, ids);
    if (good == ids.size()) return absl::OkStatus();
    return BadId(first + static_cast<int64_t>(good), IdAt(bytes, good), vocab);
  }

 private:
  absl::Status ReadBytes(int64_t offset_bytes, absl::Span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = pread(file_.get(), bytes.data(), bytes.size(), offset_bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FileError(errno, "read", path_);
      if (n == 0) {
        return absl::DataLossError(absl::StrCat("\"", path_, "\" ends at byte ", offset_bytes, ": it had ", num_bytes_,
                                                " bytes when it was opened; put it back as it was"));
      }
      bytes.remove_prefix(static_cast<size_t>(n));
      offset_bytes += n;
    }
    return absl::OkStatus();
  }

  uint32_t IdAt(absl::Span<const std::byte> bytes, size_t token) const {
    const size_t offset = token * static_cast<size_t>(token_bytes_);
    return token_bytes_ == 1   ? LoadLittleEndian<uint8_t>(bytes, offset)
           : token_bytes_ == 2 ? LoadLittleEndian<uint16_t>(bytes, offset)
                               : LoadLittleEndian<uint32_t>(bytes, offset);
  }
  absl::Status BadId(int64_t token, uint32_t id, int64_t vocab) const {
    return absl::InvalidArgumentError(absl::StrCat("\"", path_, "\": token ", token, " (byte offset ",
                                                   token * token_bytes_, "): id ", id,
                                                   ", must be below the vocabulary of ", vocab));
  }

  const std::string path_;
  const FileDescriptor file_;
  const int64_t num_bytes_;
  const int token_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path, int token_bytes) {
  if (token_bytes != 1 && token_bytes != 2 && token_bytes != 4) {
    return absl::InvalidArgumentError(absl::StrCat("token_bytes: ", token_bytes, ", must be 1, 2 or 4"));
  }
  // O_NONBLOCK: a pipe without a writer would block the open.
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not a regular file"));
  const auto num_bytes = static_cast<int64_t>(info.st_size);
  if (num_bytes == 0) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is empty"));
  if (num_bytes % token_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\": ", num_bytes, " bytes, must be a multiple of ",
                                                   token_bytes, ", the bytes of a token id"));
  }
  return std::make_unique<OpenTokenFile>(path, std::move(file), num_bytes, token_bytes);
}

}  // namespace eps
