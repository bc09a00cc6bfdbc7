// In place of nvidia_device.cc where the build machine has no CUDA toolkit.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

absl::Status CheckCudaIsBuilt() {
  return absl::UnimplementedError(
      "this build has no CUDA device, as it was made on a machine without the toolkit of CUDA 13; install it (looked "
      "for in /usr/local/cuda, or where CUDA_PATH says) and run ./build again, or use --device cpu");
}

absl::StatusOr<int> CountGpus() { return CheckCudaIsBuilt(); }
absl::StatusOr<GpuInfo> ProbeNvidiaGpu(int) { return CheckCudaIsBuilt(); }
absl::StatusOr<std::unique_ptr<Device>> NewNvidiaDevice(int, const CudaDeviceOptions&) { return CheckCudaIsBuilt(); }

}  // namespace eps::worker::cuda
