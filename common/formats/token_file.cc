#include "common/formats/token_file.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/formats/mapped_file.h"

namespace eps {
namespace {

template <int kBytes>
uint32_t LoadId(const std::byte* bytes) {
  uint32_t id = 0;
  for (int i = 0; i < kBytes; ++i) id |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return id;
}

// Copies ids that are below `vocab` and returns how many came before the first that is not.
template <int kBytes>
size_t CopyIds(const std::byte* bytes, int64_t vocab, absl::Span<int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t id = LoadId<kBytes>(bytes + i * kBytes);
    if (id >= vocab || id > INT32_MAX) return i;
    ids[i] = static_cast<int32_t>(id);
  }
  return ids.size();
}

class MappedTokenFile final : public TokenFile {
 public:
  MappedTokenFile(std::unique_ptr<MappedFile> file, int token_bytes)
      : file_(std::move(file)), token_bytes_(token_bytes) {}

  int64_t num_tokens() const override { return static_cast<int64_t>(file_->bytes().size()) / token_bytes_; }

  absl::Status Read(int64_t first, int64_t vocab, absl::Span<int32_t> ids) const override {
    const auto count = static_cast<int64_t>(ids.size());
    if (first < 0 || count > num_tokens() || first > num_tokens() - count) {
      return absl::OutOfRangeError(
          absl::StrCat("\"", file_->path(), "\": tokens ", first, " to ", first, " + ", count, " of ", num_tokens()));
    }
    const std::byte* bytes = file_->bytes().data() + first * token_bytes_;
    const size_t good = token_bytes_ == 1   ? CopyIds<1>(bytes, vocab, ids)
                        : token_bytes_ == 2 ? CopyIds<2>(bytes, vocab, ids)
                                            : CopyIds<4>(bytes, vocab, ids);
    if (good == ids.size()) return absl::OkStatus();
    return BadId(first + static_cast<int64_t>(good), vocab);
  }

 private:
  absl::Status BadId(int64_t token, int64_t vocab) const {
    const int64_t offset_bytes = token * token_bytes_;
    const std::byte* bytes = file_->bytes().data() + offset_bytes;
    const uint32_t id = token_bytes_ == 1 ? LoadId<1>(bytes) : token_bytes_ == 2 ? LoadId<2>(bytes) : LoadId<4>(bytes);
    return absl::InvalidArgumentError(absl::StrCat("\"", file_->path(), "\": token ", token, " (byte offset ",
                                                   offset_bytes, "): id ", id, ", must be below the vocabulary of ",
                                                   vocab));
  }

  const std::unique_ptr<MappedFile> file_;
  const int token_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path, int token_bytes) {
  if (token_bytes != 1 && token_bytes != 2 && token_bytes != 4) {
    return absl::InvalidArgumentError(absl::StrCat("token_bytes: ", token_bytes, ", must be 1, 2 or 4"));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const auto num_bytes = static_cast<int64_t>(file->bytes().size());
  if (num_bytes % token_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\": ", num_bytes, " bytes, must be a multiple of ",
                                                   token_bytes, ", the bytes of a token id"));
  }
  return std::make_unique<MappedTokenFile>(std::move(file), token_bytes);
}

}  // namespace eps
