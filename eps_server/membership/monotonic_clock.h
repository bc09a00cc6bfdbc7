#ifndef EPS_SERVER_MEMBERSHIP_MONOTONIC_CLOCK_H_
#define EPS_SERVER_MEMBERSHIP_MONOTONIC_CLOCK_H_

#include <functional>

#include "absl/time/time.h"

namespace eps::server {

// Time since some fixed moment; never goes back. Leases use it, so that setting the wall clock
// loses no worker.
using MonotonicClock = std::function<absl::Duration()>;

MonotonicClock SteadyClock();

}  // namespace eps::server

#endif  // EPS_SERVER_MEMBERSHIP_MONOTONIC_CLOCK_H_
