#include "gpu_worker/device/cuda/nvidia_device.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/nvidia_runtime.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

absl::Status CheckCudaIsBuilt() { return absl::OkStatus(); }

absl::StatusOr<int> CountGpus() { return CountNvidiaGpus(); }

absl::StatusOr<GpuInfo> ProbeNvidiaGpu(int index) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<GpuRuntime> runtime, NewNvidiaRuntime(index));
  EPS_ASSIGN_OR_RETURN(const GpuMemory memory, runtime->Memory());
  return GpuInfo{.model = runtime->model(), .memory = memory};
}

absl::StatusOr<std::unique_ptr<Device>> NewNvidiaDevice(int index, const CudaDeviceOptions& options) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<GpuRuntime> runtime, NewNvidiaRuntime(index));
  return NewCudaDevice(options, std::move(runtime));
}

}  // namespace eps::worker::cuda
