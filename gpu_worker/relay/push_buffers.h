#ifndef EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
#define EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Host memory for gradients on their way to the daemon. A buffer comes back when the last Contribution that points
// into it is let go, which may be after the pool itself is gone. Memory is kept for the next step, and given back where
// other sizes would take the whole beyond `keep_bytes`.
//
// Threads: safe
class PushBuffers {
 public:
  // keep_bytes: what is under way at once at most (RelayPlan::host_push_bytes).
  explicit PushBuffers(int64_t keep_bytes) : keep_bytes_(keep_bytes), free_(std::make_shared<FreeList>()) {}

  PushMemory Acquire(int64_t num_bytes);

  // Allocated and not freed, in use or not, in bytes.
  int64_t held_bytes() const;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    int64_t num_bytes = 0;
  };
  struct FreeList {
    Mutex mu;
    std::vector<Block> blocks ABSL_GUARDED_BY(mu);
    int64_t held_bytes ABSL_GUARDED_BY(mu) = 0;
  };
  Block Take(int64_t num_bytes);

  // Fixed after construction.
  const int64_t keep_bytes_;
  const std::shared_ptr<FreeList> free_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PUSH_BUFFERS_H_
