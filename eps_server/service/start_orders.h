#ifndef EPS_SERVER_SERVICE_START_ORDERS_H_
#define EPS_SERVER_SERVICE_START_ORDERS_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "eps_server/membership/monotonic_clock.h"

namespace eps::server {

// How many workers are to be started beside those that are there. The daemon starts none: `eps train` does, which looks here
// several times a second.
//
// Threads: all methods are safe
class StartOrders {
 public:
  explicit StartOrders(MonotonicClock clock) : clock_(std::move(clock)) {}

  // Somebody who starts workers has looked.
  void NoteStarter();
  // Errors: INVALID_ARGUMENT not 1 to kMaxWorkers · FAILED_PRECONDITION nobody who starts workers has looked for kStarterTime
  absl::Status Ask(int workers);
  // By all calls of Ask that did not fail; never falls.
  int64_t asked_for() const;

 private:
  static constexpr absl::Duration kStarterTime = absl::Seconds(10);
  const MonotonicClock clock_;
  mutable Mutex mu_;
  absl::Duration starter_seen_at_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  int64_t asked_for_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_START_ORDERS_H_
