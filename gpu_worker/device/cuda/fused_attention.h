#ifndef EPS_GPU_WORKER_DEVICE_CUDA_FUSED_ATTENTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_FUSED_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// Enqueues in the stream of a call what the library has not: `y`, of (n) elements of the problem's compute dtype, gets 1
// where `dropout` keeps an element, else 0.
using EnqueueDropoutMask = absl::FunctionRef<absl::Status(int64_t n, const DeviceDropout& dropout, void* y)>;

// Attention by a library, on one GPU.
//
// Threads: safe. Every call wants the GPU to be the current one of its thread.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // Whether it computes the problem, forward and backward; the answer stays, and is logged when it is found. An error
  // is not an answer: what is merely not supported is `false`.
  virtual absl::StatusOr<bool> Takes(const SdpaProblem& problem) = 0;
  // Of a problem that it takes, as GpuRuntime::AttentionAlgorithm.
  virtual absl::StatusOr<std::string> Algorithm(const SdpaProblem& problem) = 0;
  // Of a problem that it takes; all in one stream, as there is one workspace.
  virtual absl::Status Forward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                               EnqueueDropoutMask enqueue_mask) = 0;
  virtual absl::Status Backward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                                EnqueueDropoutMask enqueue_mask) = 0;
  virtual std::string version() const = 0;
  virtual int64_t held_bytes() const = 0;  // of workspace, outside of the arena
  // From now on a workspace that has become too small is held all the same: graphs that were captured use it.
  virtual void KeepWorkspaces() = 0;
};

// `sm_major`: of the GPU's compute capability.
// Errors: UNIMPLEMENTED the toolkit that this was built with had no cuDNN · FAILED_PRECONDITION it is not found, or its
//         version is another
absl::StatusOr<std::unique_ptr<FusedAttention>> LoadFusedAttention(int sm_major);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_FUSED_ATTENTION_H_
