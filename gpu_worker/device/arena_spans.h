#ifndef EPS_GPU_WORKER_DEVICE_ARENA_SPANS_H_
#define EPS_GPU_WORKER_DEVICE_ARENA_SPANS_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

// What every device says of its arena's spans, whatever memory the arena is of.
//
// Threads: safe
class ArenaSpans {
 public:
  explicit ArenaSpans(int64_t arena_bytes) : arena_bytes_(arena_bytes) {}

  // Raises the high-water mark to the span's end; a span that is refused does not.
  // Errors: as Device::Address
  absl::Status Claim(ArenaSpan span);
  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t high_water_bytes() const { return high_water_bytes_.load(std::memory_order_relaxed); }

 private:
  const int64_t arena_bytes_;
  std::atomic<int64_t> high_water_bytes_{0};
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_ARENA_SPANS_H_
