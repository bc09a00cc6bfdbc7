#include "gpu_worker/device_registry.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"

namespace eps::worker {

absl::StatusOr<DeviceBackend> FindDevice(const std::string& name) {
  if (name == "cpu") {
    return DeviceBackend{.kernels = CpuKernelSizes(), .create = [](DeviceOptions options) {
                           return NewCpuDevice({.arena_bytes = options.arena_bytes, .threads = options.threads});
                         }};
  }
  if (name == "cuda" || absl::StartsWith(name, "cuda:")) {
    return absl::UnimplementedError(
        absl::StrCat("--device ", name, ": this build has no CUDA device yet; use --device cpu"));
  }
  return absl::InvalidArgumentError(absl::StrCat("--device ", name, ": want cpu, cuda or cuda:I"));
}

}  // namespace eps::worker
