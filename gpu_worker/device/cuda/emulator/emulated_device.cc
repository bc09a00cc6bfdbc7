// The door to the cuda device (nvidia_device.h) in a program whose GPUs are the emulator's.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_device_options.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {
namespace {

// They are of one model, and run the threads of a grid in opposite orders: workers on both must agree to the bit.
constexpr int kGpus = 2;

absl::StatusOr<std::unique_ptr<GpuRuntime>> NewRuntime(int index) {
  if (index >= kGpus) {
    return absl::NotFoundError(absl::StrCat("cuda:", index, ": the emulator has ", kGpus, " GPUs, counted from 0"));
  }
  return NewEmulatedRuntime(index == 0 ? GridOrder::kForward : GridOrder::kBackward, {.has_fused_attention = true});
}

}  // namespace

absl::Status CheckCudaIsBuilt() { return absl::OkStatus(); }

absl::StatusOr<int> CountGpus() { return kGpus; }

absl::StatusOr<GpuInfo> ProbeNvidiaGpu(int index) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<GpuRuntime> runtime, NewRuntime(index));
  EPS_ASSIGN_OR_RETURN(const GpuMemory memory, runtime->Memory());
  return GpuInfo{.model = runtime->model(), .memory = memory};
}

absl::StatusOr<std::unique_ptr<Device>> NewNvidiaDevice(int index, const CudaDeviceOptions& options) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<GpuRuntime> runtime, NewRuntime(index));
  return NewCudaDevice(options, std::move(runtime));
}

}  // namespace eps::worker::cuda
