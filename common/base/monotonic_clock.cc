#include "common/base/monotonic_clock.h"

#include <chrono>

namespace eps {

absl::Duration SteadyNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace eps
