#ifndef EPS_GPU_WORKER_RELAY_PULL_CLOCK_H_
#define EPS_GPU_WORKER_RELAY_PULL_CLOCK_H_

#include <chrono>
#include <vector>

#include "absl/types/span.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

// Tells how much of the time that compute waited for pulls was spent waiting for versions: the daemon had not made
// the weights yet, and no faster transfer would have helped.
//
// Threads: none of its own. Pulled is called on the in-stream; the rest when it is idle.
class PullClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Forgets everything: a pass begins.
  void Start() { version_waits_.clear(); }

  // A blob was asked for at `begin`, waited `version_wait_seconds` for its version, and was there at `end`. Pulls run
  // one after the other.
  void Pulled(Time begin, double version_wait_seconds, Time end);

  // Of what was pulled since Start, one after the other.
  absl::Span<const TimeSpan> version_waits() const { return version_waits_; }

  // Of the time in `waits`, which follow one another.
  double VersionWaitSeconds(absl::Span<const TimeSpan> waits) const;

 private:
  std::vector<TimeSpan> version_waits_;  // they follow one another
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PULL_CLOCK_H_
