#ifndef EPS_SERVER_INTERRUPTS_H_
#define EPS_SERVER_INTERRUPTS_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/end_signals.h"
#include "common/base/long_work.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"
#include "eps_server/daemon.h"

namespace eps::server {

// What signals mean to a daemon (EndSignals). While it starts, any of them ends it. From OnStarted on the first SIGINT or
// SIGTERM stops it after the step in progress, a second one ends it at once. SIGHUP, however often it comes, asks to stop,
// and is no first one. After the run, any of them ends the lingering.
//
// Threads: safe
class Interrupts {
 public:
  // `start`: what is done until OnStarted.
  explicit Interrupts(LongWork* start, MonotonicClock clock = SteadyClock())
      : start_(start), signals_(std::move(clock)) {}

  void OnSignal(int number) ABSL_LOCKS_EXCLUDED(mu_);

  // The daemon is there. A signal that came too late to end its start stops it.
  void OnStarted(Daemon* daemon) ABSL_LOCKS_EXCLUDED(mu_);
  // SIGINT or SIGTERM, whichever came first; else SIGHUP, if it came; 0: none.
  int first() ABSL_LOCKS_EXCLUDED(mu_);
  // The run is over: the daemon is not told of signals any more, and may go. Returns the first SIGINT or SIGTERM; 0: none.
  int OnRunOver() ABSL_LOCKS_EXCLUDED(mu_);
  // For `linger`, or until a signal comes; not at all if one came before, however long ago.
  void Linger(absl::Duration linger) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;  // held while the daemon is told, which is short, so that it does not go meanwhile
  CondVar came_;
  LongWork* start_ ABSL_GUARDED_BY(mu_);           // null: it is over
  Daemon* daemon_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: it has not started, or is over
  EndSignals signals_ ABSL_GUARDED_BY(mu_);        // SIGINT and SIGTERM
  bool any_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace eps::server

#endif  // EPS_SERVER_INTERRUPTS_H_
