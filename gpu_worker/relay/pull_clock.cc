#include "gpu_worker/relay/pull_clock.h"

#include <algorithm>

namespace eps::worker {

void PullClock::Pulled(size_t index, Time begin, double version_wait_seconds, Time end) {
  Pull& pull = pulls_[index];
  const auto waited = std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(version_wait_seconds));
  pull.version_waits.push_back({begin, std::min(begin + waited, end)});
  pull.end = end;
}

double PullClock::VersionWaitSeconds() const {
  // Pulls run one after the other, so compute may wait for one pull while an earlier one waits for its version.
  double seconds = 0;
  for (const Pull& awaited : pulls_) {
    for (const Pull& pull : pulls_) {
      for (const Interval& interval : pull.version_waits) {
        const Time begin = std::max(interval.begin, awaited.arrived);
        const Time end = std::min(interval.end, awaited.end);
        if (begin < end) seconds += std::chrono::duration<double>(end - begin).count();
      }
    }
  }
  return seconds;
}

}  // namespace eps::worker
