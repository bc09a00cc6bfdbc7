// In place of nvidia_runtime.cc where the build machine has no CUDA toolkit.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/nvidia_runtime.h"

namespace eps::worker::cuda {

absl::StatusOr<std::unique_ptr<GpuRuntime>> NewNvidiaRuntime(int) {
  return absl::UnimplementedError(
      "this build was made on a machine without the CUDA toolkit; install it (version 13, in /usr/local/cuda, or say "
      "where in CUDA_PATH), and run ./build again");
}

}  // namespace eps::worker::cuda
