#ifndef EPS_COMMON_CORPUS_LINE_READER_H_
#define EPS_COMMON_CORPUS_LINE_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/corpus/sequential_file.h"

namespace eps {

// A line of a file, without its end ("\n" or "\r\n").
struct TextLine {
  absl::string_view text;
  int64_t number = 1;        // the first is 1
  int64_t offset_bytes = 0;  // of its first byte in the file
};

// "line 12, byte offset 3456": how errors name a place.
std::string LinePlace(const TextLine& line);

// The lines of a file, however long the file is: no more than one line and a buffer of it are in memory.
//
// Threads: one at a time.
class LineReader {
 public:
  static constexpr int64_t kMaxLineBytes = int64_t{64} << 20;

  // Errors: SequentialFile::Open's
  static absl::StatusOr<std::unique_ptr<LineReader>> Open(const std::string& path,
                                                          int64_t max_line_bytes = kMaxLineBytes);

  // False at the end of the file. `line` is valid until the next call.
  // Errors: INVALID_ARGUMENT a line of more than max_line_bytes, by its place; the next call goes on behind it · file
  //         errors
  absl::StatusOr<bool> Next(TextLine& line);

  int64_t file_bytes() const { return file_->num_bytes(); }
  int64_t offset_bytes() const { return offset_; }  // of what Next reads next

 private:
  LineReader(std::unique_ptr<SequentialFile> file, int64_t max_line_bytes)
      : file_(std::move(file)), max_line_bytes_(max_line_bytes) {}

  absl::StatusOr<bool> FillBuffer();
  absl::Status SkipLine();  // the one at start_

  const std::unique_ptr<SequentialFile> file_;
  const int64_t max_line_bytes_;
  std::string buffer_;  // bytes of the file from offset_ - start_ on
  size_t start_ = 0;    // in buffer_, of the next line
  int64_t offset_ = 0;
  int64_t number_ = 0;
  bool skips_ = false;  // the next line, which was refused
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_LINE_READER_H_
