#ifndef EPS_GPU_WORKER_DEVICE_CUDA_GPU_RUNTIME_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_GPU_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// Handles of the runtime that made them.
struct GpuStream {
  void* handle = nullptr;
};
struct GpuEvent {
  void* handle = nullptr;
};

// What the cuda device needs of a GPU, one method a call: CUDA's runtime and libraries, or the emulator's in tests.
// Work is enqueued in a stream and runs later, in order; what fails there is returned by any later call.
//
// Errors:  a status that names the call, with the runtime's own words
// Threads: safe; one stream from one thread at a time
class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  // What results depend on to the bit: the GPU's model, and the versions of what computes.
  virtual std::string model() const = 0;
  // Device memory that is known to be held beside what was allocated here: workspaces. What the context and the code of
  // libraries take is not known.
  virtual int64_t held_bytes() const = 0;

  virtual absl::StatusOr<int64_t> FreeBytes() = 0;  // now, of the whole device
  // Errors: RESOURCE_EXHAUSTED the device has not so much free
  virtual absl::StatusOr<void*> Allocate(int64_t num_bytes) = 0;
  virtual void Free(void* memory) = 0;

  // Host memory that is pinned from the start, aligned to a page.
  // Errors: RESOURCE_EXHAUSTED there is not so much
  virtual absl::StatusOr<void*> AllocateHost(int64_t num_bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // Pins host memory: copies from it are one transfer, and run beside other work. Whole pages that overlap nothing that
  // is registered.
  virtual absl::Status RegisterHost(absl::Span<const std::byte> pages) = 0;
  virtual void UnregisterHost(absl::Span<const std::byte> pages) = 0;

  virtual absl::StatusOr<GpuStream> NewStream() = 0;
  virtual void DestroyStream(GpuStream stream) = 0;
  virtual absl::StatusOr<GpuEvent> NewEvent() = 0;
  virtual void DestroyEvent(GpuEvent event) = 0;

  virtual absl::Status CopyIn(GpuStream stream, void* device, absl::Span<const std::byte> host) = 0;
  virtual absl::Status CopyOut(GpuStream stream, absl::Span<std::byte> host, const void* device) = 0;
  virtual absl::Status Launch(GpuStream stream, const KernelCall& call) = 0;
  virtual absl::Status MatMul(GpuStream stream, const MatMulProblem& problem) = 0;

  // Whether fused attention computes a problem, forward and backward; where it does not the plain kernel has to, in
  // both. The answer stays. The first question about a problem may take seconds, and allocate.
  // Errors: RESOURCE_EXHAUSTED the device has no room for its workspace
  virtual absl::StatusOr<bool> TakesAttention(const SdpaProblem& problem) = 0;
  // Of problems that it takes, in one stream.
  virtual absl::Status Attention(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) = 0;
  virtual absl::Status AttentionBackward(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) = 0;

  // An event may be recorded again; a wait is for the last record before it.
  virtual absl::Status Record(GpuStream stream, GpuEvent event) = 0;
  virtual absl::Status Wait(GpuStream stream, GpuEvent event) = 0;
  virtual absl::Status Synchronize(GpuStream stream) = 0;
  // Between two events that were reached.
  virtual absl::StatusOr<double> SecondsBetween(GpuEvent start, GpuEvent end) = 0;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_GPU_RUNTIME_H_
