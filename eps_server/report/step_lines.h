#ifndef EPS_SERVER_REPORT_STEP_LINES_H_
#define EPS_SERVER_REPORT_STEP_LINES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "eps_server/report/line_queue.h"

namespace eps::server {

// A file that grows by a line of JSON with a "step", as things happen.
//
// Threads: one at a time
class StepLines {
 public:
  // Keeps the lines of `path` up to the last one whose step is less than `first_step`, and removes what follows, also a
  // line that a killed process wrote in half. Errors: the system's, naming the file · CheckReplaceable's
  static absl::StatusOr<std::unique_ptr<StepLines>> Open(const std::string& path, int64_t first_step);

  // `line` ends with its end of line. It is in the file soon, and before the end of this object: whoever calls waits for
  // no disk. A full disk, or one that hangs, must not end a run: what cannot be written is said once in the log, and the
  // run goes on.
  void Write(std::string line);

 private:
  StepLines(std::string path, FileDescriptor file, int64_t num_bytes);
  // Says so once.
  void Lose(const absl::Status& why);

  const std::string path_;
  const FileDescriptor file_;
  int64_t num_bytes_;                 // used by the queue alone
  std::atomic<bool> failed_ = false;  // atomic, because the queue's thread may lose a line, and who adds one
  LineQueue queue_;                   // last: it uses all of the above
};

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_STEP_LINES_H_
