#ifndef EPS_SERVER_INTERRUPTS_H_
#define EPS_SERVER_INTERRUPTS_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "eps_server/daemon.h"
#include "eps_server/membership/monotonic_clock.h"

namespace eps::server {

// What signals mean to a daemon: the first SIGINT or SIGTERM stops it after the step in progress, a second one ends it at
// once. What comes within kRepeat is the same signal: `timeout` signals a process and then its group, and a service
// manager all processes of a group, of which `eps train` passes its own on. SIGHUP says that whoever started us is gone,
// once for each of its threads: however often it comes, it asks to stop and never to end at once. After the run, any of
// them ends the lingering.
//
// Threads: safe
class Interrupts {
 public:
  static constexpr absl::Duration kRepeat = absl::Seconds(1);

  explicit Interrupts(Daemon* daemon, MonotonicClock clock = SteadyClock())
      : clock_(std::move(clock)), daemon_(daemon) {}

  void OnSignal(int number) ABSL_LOCKS_EXCLUDED(mu_);

  // The run is over: the daemon is not told of signals any more, and may go. Returns the first SIGINT or SIGTERM; 0: none.
  int OnRunOver() ABSL_LOCKS_EXCLUDED(mu_);
  // For `linger`, or until a signal comes; not at all if one came before, however long ago.
  void Linger(absl::Duration linger) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const MonotonicClock clock_;
  Mutex mu_;  // held while the daemon is told, which is short, so that it does not go meanwhile
  CondVar came_;
  Daemon* daemon_ ABSL_GUARDED_BY(mu_);
  int first_ ABSL_GUARDED_BY(mu_) = 0;  // SIGINT or SIGTERM
  absl::Duration first_at_ ABSL_GUARDED_BY(mu_);
  bool any_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace eps::server

#endif  // EPS_SERVER_INTERRUPTS_H_
