#include "eps_server/membership/monotonic_clock.h"

#include <chrono>

namespace eps::server {

MonotonicClock SteadyClock() {
  return [] { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); };
}

}  // namespace eps::server
