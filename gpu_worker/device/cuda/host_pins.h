#ifndef EPS_GPU_WORKER_DEVICE_CUDA_HOST_PINS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_HOST_PINS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"

namespace eps::worker::cuda {

// The host memory that a device has pinned, page by page: each page once, in pieces, as one call for hundreds of GB
// fails and one for small pages takes minutes. What cannot be pinned is not asked for again.
//
// Threads: safe
class HostPins {
 public:
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int64_t kPieceBytes = int64_t{256} << 20;  // the most of one call

  explicit HostPins(std::shared_ptr<GpuRuntime> runtime) : runtime_(std::move(runtime)) {}
  // Lets go of all. No copy is under way.
  ~HostPins();
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;

  // Pins the pages of `host` that were not seen before. A copy may not take pages of both kinds: where one piece is
  // refused, the others of the call are let go too.
  // Errors: the first of the runtime's
  absl::Status Pin(absl::Span<const std::byte> host);
  int64_t pinned_bytes() const;

 private:
  struct Piece {
    uintptr_t end = 0;
    bool pinned = false;
  };

  const std::shared_ptr<GpuRuntime> runtime_;
  mutable Mutex mu_;
  std::map<uintptr_t, Piece> pieces_ ABSL_GUARDED_BY(mu_);  // by their first page; they do not overlap
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_HOST_PINS_H_
