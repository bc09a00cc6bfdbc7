#ifndef EPS_COMMON_CORPUS_SEQUENTIAL_FILE_H_
#define EPS_COMMON_CORPUS_SEQUENTIAL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/file_util.h"

namespace eps {

// A file that is read from its start to its end. Read, not mapped: one that somebody cuts short meanwhile ends early, and
// no signal ends the process.
//
// Threads: one at a time.
class SequentialFile {
 public:
  // Errors: NOT_FOUND, PERMISSION_DENIED, ... as the system says · INVALID_ARGUMENT no regular file
  static absl::StatusOr<std::unique_ptr<SequentialFile>> Open(const std::string& path);

  int64_t num_bytes() const { return num_bytes_; }  // when it was opened
  // How many bytes were read, at most `max_bytes`; 0 at the end. Errors: the system's
  absl::StatusOr<size_t> Read(char* bytes, size_t max_bytes);

 private:
  SequentialFile(std::string path, FileDescriptor file, int64_t num_bytes)
      : path_(std::move(path)), file_(std::move(file)), num_bytes_(num_bytes) {}

  const std::string path_;
  const FileDescriptor file_;
  const int64_t num_bytes_;
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_SEQUENTIAL_FILE_H_
