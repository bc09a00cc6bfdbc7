#ifndef EPS_COMMON_BASE_MEMORY_SPEED_H_
#define EPS_COMMON_BASE_MEMORY_SPEED_H_

#include <cstddef>

#include "absl/time/time.h"

namespace eps {

// Of all threads together: both programs that measure count on no more, the daemon within the constant of its memory.
inline constexpr size_t kMemorySpeedBytes = size_t{64} << 20;

struct MemorySpeed {
  double bytes_per_second = 0;  // read and written, of all `threads`
  int threads = 0;              // that ran at once, `threads` or fewer

  double per_thread() const { return threads > 0 ? bytes_per_second / threads : 0; }
};

// What a plain loop that reads and writes memory in place moves, of `threads` threads (1 or more) at once: what the
// optimizer's update can reach at most. Each goes over an equal part of kMemorySpeedBytes for about `time`. Blocks.
//
// There are never so many of them that a part would lie in a core's own cache (2 MiB on the largest known to us), whose
// speed is many times the memory's: 8 threads of 8 MiB. Where more are asked for, per_thread() stays what a thread
// reaches at most, since the more there are the less has each.
MemorySpeed MeasureMemorySpeed(int threads, absl::Duration time);

}  // namespace eps

#endif  // EPS_COMMON_BASE_MEMORY_SPEED_H_
