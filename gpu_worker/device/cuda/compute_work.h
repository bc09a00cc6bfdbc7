#ifndef EPS_GPU_WORKER_DEVICE_CUDA_COMPUTE_WORK_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_COMPUTE_WORK_H_

#include <cstddef>
#include <variant>

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {

// Fused attention of a problem that the runtime takes.
struct AttentionCall {
  SdpaProblem problem;
  SdpaArrays arrays;
  bool is_backward = false;

  friend bool operator==(const AttentionCall&, const AttentionCall&) = default;
};

// What one call of the runtime enqueues in the compute stream. Two that are equal do the same, on the same memory.
using ComputeWork = std::variant<KernelCall, MatMulProblem, AttentionCall>;

// Of equal work it is equal.
size_t HashOf(const ComputeWork& work);

// Errors: the runtime's, with what was enqueued in front
absl::Status Enqueue(GpuRuntime& runtime, GpuStream stream, const ComputeWork& work);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_COMPUTE_WORK_H_
