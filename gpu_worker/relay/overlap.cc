#include "gpu_worker/relay/overlap.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "absl/types/span.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

double OverlapSeconds(absl::Span<const TimeSpan> some, absl::Span<const TimeSpan> others) {
  double seconds = 0;
  size_t first = 0;
  for (const TimeSpan& other : others) {
    while (first < some.size() && some[first].end <= other.begin) ++first;
    for (size_t i = first; i < some.size() && some[i].begin < other.end; ++i) {
      const auto begin = std::max(some[i].begin, other.begin);
      const auto end = std::min(some[i].end, other.end);
      if (begin < end) seconds += std::chrono::duration<double>(end - begin).count();
    }
  }
  return seconds;
}

}  // namespace eps::worker
