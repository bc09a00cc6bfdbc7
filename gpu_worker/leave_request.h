#ifndef EPS_GPU_WORKER_LEAVE_REQUEST_H_
#define EPS_GPU_WORKER_LEAVE_REQUEST_H_

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/end_signals.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"

namespace eps::worker {

// What signals mean to a worker (EndSignals): the first one asks it to leave, once nobody needs what the daemon has given
// it; where it has no daemon that knows of it as ready, it ends at once. A second one ends it at once, whose work others
// do again.
//
// Threads: safe
class LeaveRequest {
 public:
  // exit: ends the process with that exit code.
  explicit LeaveRequest(std::function<void(int)> exit, MonotonicClock clock = SteadyClock())
      : exit_(std::move(exit)), signals_(std::move(clock)) {}

  void OnSignal(int number) ABSL_LOCKS_EXCLUDED(mu_);
  // The first signal; 0: none came.
  int signal() const ABSL_LOCKS_EXCLUDED(mu_);

  // `ask` asks the daemon, without blocking; it is called once, by whoever brings the signal, until Unattend.
  void Attend(std::function<void()> ask) ABSL_LOCKS_EXCLUDED(mu_);
  // When it returns, `ask` is not called any more.
  void Unattend() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<void(int)> exit_;
  mutable Mutex mu_;  // held while the daemon is asked
  std::function<void()> ask_ ABSL_GUARDED_BY(mu_);
  EndSignals signals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LEAVE_REQUEST_H_
