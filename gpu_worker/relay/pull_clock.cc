#include "gpu_worker/relay/pull_clock.h"

#include <algorithm>
#include <chrono>

#include "absl/types/span.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/relay/overlap.h"

namespace eps::worker {

void PullClock::Pulled(Time begin, double version_wait_seconds, Time end) {
  const auto waited = std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(version_wait_seconds));
  version_waits_.push_back({begin, std::min(begin + waited, end)});
}

double PullClock::VersionWaitSeconds(absl::Span<const TimeSpan> waits) const {
  // Compute may wait for one pull while an earlier one waits for its version: what counts is when, and not for which.
  return OverlapSeconds(version_waits_, waits);
}

}  // namespace eps::worker
