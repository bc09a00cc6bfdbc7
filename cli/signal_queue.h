#ifndef EPS_CLI_SIGNAL_QUEUE_H_
#define EPS_CLI_SIGNAL_QUEUE_H_

#include <signal.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"

namespace eps::cli {

// Signals that ask to end, as something to poll: blocked for this thread and those it starts later, read from a
// descriptor.
//
// Threads: one at a time
class SignalQueue {
 public:
  // Errors: the system's
  static absl::StatusOr<SignalQueue> Create(std::initializer_list<int> signals = {SIGINT, SIGTERM});
  // Waits up to `timeout`; the signal's number if one came.
  std::optional<int> Wait(absl::Duration timeout);
  // The last one that came; 0: none yet.
  int last() const { return last_; }

 private:
  explicit SignalQueue(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
  int last_ = 0;
};

}  // namespace eps::cli

#endif  // EPS_CLI_SIGNAL_QUEUE_H_
