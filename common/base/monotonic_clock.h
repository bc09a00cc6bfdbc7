#ifndef EPS_COMMON_BASE_MONOTONIC_CLOCK_H_
#define EPS_COMMON_BASE_MONOTONIC_CLOCK_H_

#include <functional>

#include "absl/time/time.h"

namespace eps {

// Time since some fixed moment; never goes back. Whatever waits or measures goes by it, so that setting the wall clock
// loses no worker, and delays nothing.
using MonotonicClock = std::function<absl::Duration()>;

absl::Duration SteadyNow();  // by the machine's own
inline MonotonicClock SteadyClock() { return SteadyNow; }

}  // namespace eps

#endif  // EPS_COMMON_BASE_MONOTONIC_CLOCK_H_
