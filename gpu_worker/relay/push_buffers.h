#ifndef EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
#define EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Host memory for gradients on their way to the daemon. A buffer comes back when the last Contribution that points
// into it is let go, which may be after the pool itself is gone. Memory is kept for the next step, and given back where
// other sizes would take the whole beyond `keep_bytes`.
//
// Threads: safe
class PushBuffers {
 public:
  // `device`: whose gradients they are, and who makes memory that it copies to fast; it outlives the pool.
  // keep_bytes: what is under way at once at most (RelayPlan::host_push_bytes).
  PushBuffers(Device* device, int64_t keep_bytes)
      : device_(*device), keep_bytes_(keep_bytes), free_(std::make_shared<FreeList>()) {}

  // Errors: RESOURCE_EXHAUSTED the host has not so much memory
  absl::StatusOr<PushMemory> Acquire(int64_t num_bytes);

  // Allocated and not freed, in use or not, in bytes.
  int64_t held_bytes() const;

 private:
  struct FreeList {
    Mutex mu;
    std::vector<HostMemory> blocks ABSL_GUARDED_BY(mu);
    int64_t held_bytes ABSL_GUARDED_BY(mu) = 0;
  };
  absl::StatusOr<HostMemory> Take(int64_t num_bytes);
  // A free block of the size. Without one, counts a new block as held, and returns what has to be freed for it.
  std::optional<HostMemory> TakeFree(int64_t num_bytes, std::vector<HostMemory>& freed);

  // Fixed after construction.
  Device& device_;
  const int64_t keep_bytes_;
  const std::shared_ptr<FreeList> free_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
