#ifndef EPS_GPU_WORKER_DEVICE_ARENA_SPAN_H_
#define EPS_GPU_WORKER_DEVICE_ARENA_SPAN_H_

#include <cstdint>

namespace eps::worker {

// A place in the arena. The planner chose it; nobody else does.
struct ArenaSpan {
  int64_t offset_bytes = 0;
  int64_t num_bytes = 0;

  int64_t end_bytes() const { return offset_bytes + num_bytes; }
  bool Overlaps(const ArenaSpan& other) const {
    return offset_bytes < other.end_bytes() && other.offset_bytes < end_bytes();
  }
  friend bool operator==(const ArenaSpan&, const ArenaSpan&) = default;
};
inline constexpr int64_t kArenaAlignBytes = 256;  // every span starts at a multiple

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_ARENA_SPAN_H_
