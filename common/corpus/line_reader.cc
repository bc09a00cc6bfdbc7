#include "common/corpus/line_reader.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kReadBytes = 1 << 20;

}  // namespace

std::string LinePlace(const TextLine& line) {
  return absl::StrCat("line ", line.number, ", byte offset ", line.offset_bytes);
}

absl::StatusOr<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path, int64_t max_line_bytes) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SequentialFile> file, SequentialFile::Open(path));
  return std::unique_ptr<LineReader>(new LineReader(std::move(file), max_line_bytes));
}

absl::StatusOr<bool> LineReader::Next(TextLine& line) {
  if (std::exchange(skips_, false)) EPS_RETURN_IF_ERROR(SkipLine());
  size_t searched = start_;
  size_t end;
  while ((end = buffer_.find('\n', searched)) == std::string::npos) {
    searched = buffer_.size() - start_;  // as it will lie after the next read
    if (static_cast<int64_t>(searched) > max_line_bytes_) break;
    EPS_ASSIGN_OR_RETURN(const bool more, FillBuffer());
    if (more) continue;
    if (buffer_.empty()) return false;
    end = buffer_.size();
    break;
  }
  line = {.number = ++number_, .offset_bytes = offset_};
  if (end == std::string::npos || static_cast<int64_t>(end - start_) > max_line_bytes_) {
    skips_ = true;
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(line), ": a line of more than ", max_line_bytes_, " bytes"));
  }
  line.text = absl::string_view(buffer_).substr(start_, end - start_);
  const size_t taken = end - start_ + (end < buffer_.size() ? 1 : 0);
  start_ += taken;
  offset_ += static_cast<int64_t>(taken);
  if (!line.text.empty() && line.text.back() == '\r') line.text.remove_suffix(1);
  return true;
}

absl::Status LineReader::SkipLine() {
  while (true) {
    const size_t end = buffer_.find('\n', start_);
    const size_t behind = end == std::string::npos ? buffer_.size() : end + 1;
    offset_ += static_cast<int64_t>(behind - start_);
    start_ = behind;
    if (end != std::string::npos) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(const bool more, FillBuffer());
    if (!more) return absl::OkStatus();
  }
}

// Drops the lines that were taken and reads more behind the rest.
absl::StatusOr<bool> LineReader::FillBuffer() {
  buffer_.erase(0, start_);
  start_ = 0;
  const size_t kept = buffer_.size();
  buffer_.resize(kept + kReadBytes);
  const absl::StatusOr<size_t> taken = file_->Read(&buffer_[kept], kReadBytes);
  buffer_.resize(kept + (taken.ok() ? *taken : 0));
  if (!taken.ok()) return taken.status();
  return *taken > 0;
}

}  // namespace eps
