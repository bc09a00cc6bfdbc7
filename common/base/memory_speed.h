#ifndef EPS_COMMON_BASE_MEMORY_SPEED_H_
#define EPS_COMMON_BASE_MEMORY_SPEED_H_

#include <cstddef>

#include "absl/time/time.h"

namespace eps {

// What a plain loop that reads and writes memory in place moves in a second, in bytes, read and written, of `threads`
// threads (1 or more) at once, all together: what the optimizer's update can reach at most. Each thread goes over `bytes`
// of its own, which should be more than its share of the caches, for about `time`. Blocks.
double MeasureMemoryBytesPerSecond(int threads, size_t bytes, absl::Duration time);

}  // namespace eps

#endif  // EPS_COMMON_BASE_MEMORY_SPEED_H_
