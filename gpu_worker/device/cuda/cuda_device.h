#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDA_DEVICE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device_options.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

// A GPU as a device, over its runtime.
//
// Errors:  INVALID_ARGUMENT an option out of range · RESOURCE_EXHAUSTED the GPU has not so much memory free · else the
//          runtime's
// Threads: as Device
absl::StatusOr<std::unique_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options,
                                                      std::unique_ptr<GpuRuntime> runtime);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDA_DEVICE_H_
