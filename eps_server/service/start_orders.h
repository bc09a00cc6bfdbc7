#ifndef EPS_SERVER_SERVICE_START_ORDERS_H_
#define EPS_SERVER_SERVICE_START_ORDERS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"

namespace eps::server {

// How many workers there are to be. The daemon starts none: `eps train` does, which looks here several times a second and
// says how far it is.
//
// Threads: all methods are safe
class StartOrders {
 public:
  struct Order {
    int64_t number = 0;  // from 1; 0: none yet
    int workers = 0;     // in all
    bool is_over = false;
    std::string failure;  // why whoever starts workers gave it up; "": it did not
  };

  // most_workers: batch.virtual_nodes
  StartOrders(int most_workers, MonotonicClock clock) : most_workers_(most_workers), clock_(std::move(clock)) {}

  // Somebody who starts workers has looked, and says this of order `number`; what is no ASCII text of `failure` is replaced, and
  // a long one is cut. Returns the failure of the newest order if it is new; else "".
  std::string NoteStarter(int64_t number, bool is_over, const std::string& failure);
  // The number of the new order, which is the newest.
  // Errors: INVALID_ARGUMENT not 1 to most_workers · FAILED_PRECONDITION nobody who starts workers has looked for kStarterTime
  absl::StatusOr<int64_t> Ask(int workers);
  // One that nobody has looked at for kStarterTime is over, and has failed.
  Order newest() const;

 private:
  static constexpr absl::Duration kStarterTime = absl::Seconds(10);
  const int most_workers_;
  const MonotonicClock clock_;
  mutable Mutex mu_;
  absl::Duration starter_seen_at_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  Order newest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_START_ORDERS_H_
