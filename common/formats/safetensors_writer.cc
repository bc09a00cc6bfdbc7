#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/formats/safetensors.h"
#include "common/formats/safetensors_header.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kDataAlignBytes = 64;

// ---- The header

absl::StatusOr<std::string> QuoteJson(const std::string& text) {
  using nlohmann::json;
  const std::string quoted = json(text).dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::ignore);
  if (json::parse(quoted, nullptr, /*allow_exceptions=*/false) != json(text)) {
    return absl::InvalidArgumentError(absl::StrCat(ShowTensorName(text), " is not UTF-8"));
  }
  return quoted;
}

absl::StatusOr<std::string> MetadataJson(const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> pairs;
  for (const auto& [key, value] : metadata) {
    EPS_ASSIGN_OR_RETURN(const std::string quoted_key, QuoteJson(key));
    EPS_ASSIGN_OR_RETURN(const std::string quoted_value, QuoteJson(value));
    pairs.push_back(absl::StrCat(quoted_key, ":", quoted_value));
  }
  return absl::StrCat("\"__metadata__\":{", absl::StrJoin(pairs, ","), "}");
}

// The whole header, its length included, padded with spaces so that the tensors start aligned.
absl::StatusOr<std::string> MakeHeader(const std::vector<SafetensorsEntry>& entries,
                                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    EPS_ASSIGN_OR_RETURN(members.emplace_back(), MetadataJson(metadata));
  }
  for (const SafetensorsEntry& entry : entries) {
    EPS_ASSIGN_OR_RETURN(const std::string name, QuoteJson(entry.name));
    members.push_back(absl::StrCat(name, ":{\"dtype\":\"", entry.dtype, "\",\"shape\":[",
                                   absl::StrJoin(entry.shape, ","), "],\"data_offsets\":[", entry.offset_bytes, ",",
                                   entry.offset_bytes + entry.num_bytes, "]}"));
  }
  std::string json = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  const int64_t padded = RoundUp(kLengthBytes + static_cast<int64_t>(json.size()), kDataAlignBytes) - kLengthBytes;
  if (padded > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header of ", padded, " bytes, must be at most ", kMaxSafetensorsHeaderBytes));
  }
  json.resize(static_cast<size_t>(padded), ' ');
  std::string length(kLengthBytes, '\0');
  for (int i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(padded >> (8 * i) & 0xFF);
  return length + json;
}

// Sets sizes, and offsets relative to the start of the data, in the order given. Returns the bytes
// of all.
absl::StatusOr<int64_t> LayOut(std::vector<SafetensorsEntry>& entries) {
  std::set<std::string> names = {"__metadata__"};
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", ShowTensorName(entry.name), ": given twice or reserved"));
    }
    absl::StatusOr<int64_t> num_bytes = SafetensorsTensorBytes(entry.dtype, entry.shape);
    EPS_RETURN_IF_ERROR_WITH(num_bytes.status(), absl::StrCat("tensor ", ShowTensorName(entry.name)));
    entry.offset_bytes = end;
    entry.num_bytes = *num_bytes;
    // 2^62: room for the header.
    if (__builtin_add_overflow(end, *num_bytes, &end) || end > int64_t{1} << 62) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", ShowTensorName(entry.name), ": the file would be longer than 2^62 bytes"));
    }
  }
  return end;
}

// ---- What has been written

// The union of the ranges that were added, as disjoint ranges that do not touch.
class Coverage {
 public:
  void Add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second >= begin) --it;
    while (it != ranges_.end() && it->first <= end) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
      it = ranges_.erase(it);
    }
    ranges_.emplace(begin, end);
  }

  // The first byte of [0, num_bytes) that was never added, or num_bytes.
  int64_t FirstMissing(int64_t num_bytes) const {
    const auto it = ranges_.begin();
    return it == ranges_.end() || it->first > 0 ? 0 : std::min(num_bytes, it->second);
  }

 private:
  std::map<int64_t, int64_t> ranges_;  // begin -> end
};

class FileWriter final : public SafetensorsWriter {
 public:
  FileWriter(std::string path, FileDescriptor file, std::vector<SafetensorsEntry> entries)
      : path_(std::move(path)), entries_(std::move(entries)), file_(std::move(file)), written_(entries_.size()) {}

  absl::Status Write(size_t index, int64_t offset_bytes, absl::Span<const std::byte> bytes) override {
    EPS_RETURN_IF_ERROR(CheckWrite(index, offset_bytes, static_cast<int64_t>(bytes.size())));
    // Not under the lock: writes to different places do not disturb each other.
    absl::Status status = WriteAt(file_, path_, entries_[index].offset_bytes + offset_bytes,
                                  absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    MutexLock lock(mu_);
    if (!status.ok()) {
      if (status_.ok()) status_ = status;
      return status;
    }
    written_[index].Add(offset_bytes, offset_bytes + static_cast<int64_t>(bytes.size()));
    return absl::OkStatus();
  }

  absl::Status StartWriteBack(bool wait) override {
    const unsigned flags = SYNC_FILE_RANGE_WRITE | (wait ? SYNC_FILE_RANGE_WAIT_BEFORE : 0u);
    if (sync_file_range(file_.get(), 0, 0, flags) == 0) return absl::OkStatus();
    // A system that cannot still syncs in Finish.
    if (errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP || errno == EPERM) return absl::OkStatus();
    // The system tells an error once: Finish would not hear of it again.
    absl::Status status = FileError(errno, "write", path_);
    MutexLock lock(mu_);
    if (status_.ok()) status_ = status;
    return status;
  }

  absl::Status Finish() override {
    {
      MutexLock lock(mu_);
      if (finished_) return absl::FailedPreconditionError(absl::StrCat(path_, ": already finished"));
      finished_ = true;
      EPS_RETURN_IF_ERROR(status_);
      EPS_RETURN_IF_ERROR(CheckWhole());
    }
    if (fsync(file_.get()) != 0) return FileError(errno, "sync", path_);
    return Annotate(file_.Close(), path_);
  }

 private:
  absl::Status CheckWrite(size_t index, int64_t offset_bytes, int64_t num_bytes) {
    MutexLock lock(mu_);
    if (finished_) return absl::FailedPreconditionError(absl::StrCat(path_, ": already finished"));
    EPS_RETURN_IF_ERROR(status_);  // the first error stays the answer
    if (index >= entries_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", index, " of ", entries_.size()));
    }
    const SafetensorsEntry& entry = entries_[index];
    if (offset_bytes < 0 || num_bytes > entry.num_bytes || offset_bytes > entry.num_bytes - num_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", ShowTensorName(entry.name), ": ", num_bytes,
                                                     " bytes at ", offset_bytes, " of ", entry.num_bytes));
    }
    return absl::OkStatus();
  }

  absl::Status CheckWhole() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const int64_t missing = written_[i].FirstMissing(entries_[i].num_bytes);
      if (missing != entries_[i].num_bytes) {
        return absl::FailedPreconditionError(absl::StrCat(path_, ": tensor ", ShowTensorName(entries_[i].name),
                                                          ": byte ", missing, " of ", entries_[i].num_bytes,
                                                          " was never written"));
      }
    }
    return absl::OkStatus();
  }

  // Fixed after construction; the descriptor until Finish.
  const std::string path_;
  const std::vector<SafetensorsEntry> entries_;
  FileDescriptor file_;

  Mutex mu_;
  std::vector<Coverage> written_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // the first error of a write
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<SafetensorsEntry> entries,
    const std::map<std::string, std::string>& metadata) {
  const absl::StatusOr<int64_t> data_bytes = LayOut(entries);
  EPS_RETURN_IF_ERROR_WITH(data_bytes.status(), path);
  const absl::StatusOr<std::string> header = MakeHeader(entries, metadata);
  EPS_RETURN_IF_ERROR_WITH(header.status(), path);
  const auto data_start = static_cast<int64_t>(header->size());
  for (SafetensorsEntry& entry : entries) entry.offset_bytes += data_start;
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  EPS_RETURN_IF_ERROR(WriteAt(file, path, 0, *header));
  if (ftruncate(file.get(), data_start + *data_bytes) != 0) return FileError(errno, "extend", path);
  return std::make_unique<FileWriter>(path, std::move(file), std::move(entries));
}

}  // namespace eps
