#ifndef EPS_GPU_WORKER_DEVICE_CUDA_NVIDIA_RUNTIME_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_NVIDIA_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"

namespace eps::worker::cuda {

// How many GPUs this process sees.
// Errors: FAILED_PRECONDITION no driver, or one that is too old, with what to do
absl::StatusOr<int> CountNvidiaGpus();

// A GPU by CUDA's runtime, and cuBLASLt, which is loaded here: a program that links this starts without either.
// `index`: as CUDA counts the GPUs of the process, from 0.
//
// Errors:  FAILED_PRECONDITION no driver, one that is too old, a GPU that is too old, or no cuBLASLt, with what to do ·
//          NOT_FOUND no GPU of that index
// Threads: as GpuRuntime
absl::StatusOr<std::unique_ptr<GpuRuntime>> NewNvidiaRuntime(int index);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_NVIDIA_RUNTIME_H_
