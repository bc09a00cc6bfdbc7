#ifndef EPS_SERVER_REPORT_STEP_LINES_H_
#define EPS_SERVER_REPORT_STEP_LINES_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/file_util.h"

namespace eps::server {

// A file that grows by a line of JSON with a "step", as things happen.
//
// Threads: one at a time
class StepLines {
 public:
  // Keeps the lines of `path` whose step is less than `first_step`, and removes all others, also one that a killed
  // process wrote in half. Errors: the system's, naming the file
  static absl::StatusOr<StepLines> Open(const std::string& path, int64_t first_step);

  // `line` ends with its end of line. A full disk must not end a run: what cannot be written is said once in the log,
  // and the run goes on.
  void Write(const std::string& line);

 private:
  StepLines(std::string path, FileDescriptor file, int64_t num_bytes)
      : path_(std::move(path)), file_(std::move(file)), num_bytes_(num_bytes) {}

  std::string path_;
  FileDescriptor file_;
  int64_t num_bytes_;
  bool failed_ = false;
};

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_STEP_LINES_H_
