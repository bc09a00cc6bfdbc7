#ifndef EPS_SERVER_REPORT_GROWING_FILE_H_
#define EPS_SERVER_REPORT_GROWING_FILE_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "eps_server/report/line_queue.h"

namespace eps::server {

// A file that grows by records, lines for instance, as things happen.
//
// Threads: one at a time
class GrowingFile {
 public:
  // Of `file`, open for writing at `path`, the first `num_bytes` stay.
  GrowingFile(std::string path, FileDescriptor file, int64_t num_bytes);

  // The record is in the file soon, and before the end of this object: whoever calls waits for no disk. A full disk, or
  // one that hangs, must not end a run: what cannot be written is said once in the log, and the run goes on.
  void Append(std::string record);

 private:
  // Says so once.
  void Lose(const absl::Status& why);

  const std::string path_;
  const FileDescriptor file_;
  int64_t num_bytes_;                 // used by the queue alone
  std::atomic<bool> failed_ = false;  // atomic, because the queue's thread may lose a record, and who adds one
  LineQueue queue_;                   // last: it uses all of the above
};

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_GROWING_FILE_H_
