#ifndef EPS_COMMON_BASE_MONOTONIC_CLOCK_H_
#define EPS_COMMON_BASE_MONOTONIC_CLOCK_H_

#include <functional>

#include "absl/time/time.h"

namespace eps {

// Time since some fixed moment; never goes back. Leases and what signals mean go by it, so that setting the wall clock
// loses no worker.
using MonotonicClock = std::function<absl::Duration()>;

MonotonicClock SteadyClock();

}  // namespace eps

#endif  // EPS_COMMON_BASE_MONOTONIC_CLOCK_H_
