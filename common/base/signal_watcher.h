#ifndef EPS_COMMON_BASE_SIGNAL_WATCHER_H_
#define EPS_COMMON_BASE_SIGNAL_WATCHER_H_

#include <signal.h>

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/file_util.h"

namespace eps {

// Takes SIGHUP out of `set` where whoever started this process has it ignored, as `nohup` does: what is blocked to be read
// would come all the same.
void LeaveIgnoredHangup(sigset_t& set);

// SIGINT, SIGTERM and SIGHUP, unless that is ignored, as calls from a thread of its own: nothing runs in a signal handler.
//
// Make it before any other thread: threads inherit that the signals are blocked.
class SignalWatcher {
 public:
  // Errors: the system's
  static absl::StatusOr<std::unique_ptr<SignalWatcher>> Create();
  // After it, `on_signal` is not called any more.
  ~SignalWatcher();

  // Calls `on_signal` with the number of each signal that comes, and of those that came before. Once.
  void Watch(std::function<void(int)> on_signal);

 private:
  SignalWatcher(FileDescriptor signals, FileDescriptor stop) : signals_(std::move(signals)), stop_(std::move(stop)) {}
  void Run(const std::function<void(int)>& on_signal) const;

  FileDescriptor signals_;
  FileDescriptor stop_;
  std::thread thread_;
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_SIGNAL_WATCHER_H_
