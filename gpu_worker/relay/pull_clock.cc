#include "gpu_worker/relay/pull_clock.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "absl/types/span.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

void PullClock::Pulled(Time begin, double version_wait_seconds, Time end) {
  const auto waited = std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(version_wait_seconds));
  version_waits_.push_back({begin, std::min(begin + waited, end)});
}

double PullClock::VersionWaitSeconds(absl::Span<const TimeSpan> waits) const {
  // Compute may wait for one pull while an earlier one waits for its version: what counts is when, and not for which.
  double seconds = 0;
  size_t first = 0;
  for (const TimeSpan& wait : waits) {
    while (first < version_waits_.size() && version_waits_[first].end <= wait.begin) ++first;
    for (size_t i = first; i < version_waits_.size() && version_waits_[i].begin < wait.end; ++i) {
      const Time begin = std::max(version_waits_[i].begin, wait.begin);
      const Time end = std::min(version_waits_[i].end, wait.end);
      if (begin < end) seconds += std::chrono::duration<double>(end - begin).count();
    }
  }
  return seconds;
}

}  // namespace eps::worker
