#ifndef EPS_GPU_WORKER_DEVICE_CUDA_NVIDIA_DEVICE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_NVIDIA_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device_options.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/device.h"

// The cuda device on a GPU. The one door to it from above, there in every build: where the build machine had no CUDA
// toolkit, each function says so (UNIMPLEMENTED).
namespace eps::worker::cuda {

absl::Status CheckCudaIsBuilt();

// How many GPUs this process sees.
// Errors: FAILED_PRECONDITION no driver, or one that is too old, with what to do
absl::StatusOr<int> CountGpus();

struct GpuInfo {
  std::string model;  // as DeviceProperties::model
  GpuMemory memory;
};

// `index`: as CUDA counts the GPUs of the process, from 0.
// Errors: FAILED_PRECONDITION no driver, one that is too old, a GPU that is too old, or no cuBLASLt, with what to do ·
//         NOT_FOUND no GPU of that index
absl::StatusOr<GpuInfo> ProbeNvidiaGpu(int index);

// Errors: as ProbeNvidiaGpu and NewCudaDevice
absl::StatusOr<std::unique_ptr<Device>> NewNvidiaDevice(int index, const CudaDeviceOptions& options);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_NVIDIA_DEVICE_H_
