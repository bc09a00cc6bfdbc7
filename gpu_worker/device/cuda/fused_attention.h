#ifndef EPS_GPU_WORKER_DEVICE_CUDA_FUSED_ATTENTION_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_FUSED_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// Enqueues in the stream of a call what the library has not: masks of the problem's compute dtype.
class SdpaMaskKernels {
 public:
  virtual ~SdpaMaskKernels() = default;
  // y (n) = what `dropout` multiplies each element by: 0, or 1 / (1 - rate).
  virtual absl::Status Kept(int64_t n, const DeviceDropout& dropout, void* y) const = 0;
  // y (B, T, T) = 0 where a row's document has the column, else -inf.
  virtual absl::Status DocumentBias(int64_t B, int64_t T, const Documents& documents, void* y) const = 0;
};

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
  virtual absl::StatusOr<SdpaEngines> Engines(const SdpaProblem& problem) = 0;  // likewise
  // Of a problem that it takes; all in one stream, as there is one workspace.
  virtual absl::Status Forward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                               const SdpaMaskKernels& masks) = 0;
  virtual absl::Status Backward(cudaStream_t stream, const SdpaProblem& problem, const SdpaArrays& arrays,
                                const SdpaMaskKernels& masks) = 0;
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
