#include "gpu_worker/device_sizes.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"

namespace eps::worker {

absl::StatusOr<KernelSizes> FindKernelSizes(const std::string& device, Dtype wire) {
  if (device == "cpu") return CpuKernelSizes();
  EPS_RETURN_IF_ERROR(GpuIndex(device).status());
  return cuda::CudaKernelSizes(wire);
}

absl::StatusOr<int> GpuIndex(absl::string_view device) {
  absl::string_view index = device;
  int gpu = 0;
  if (absl::ConsumePrefix(&index, "cuda")) {
    if (index.empty()) return 0;
    if (absl::ConsumePrefix(&index, ":") && absl::SimpleAtoi(index, &gpu) && gpu >= 0) return gpu;
  }
  return absl::InvalidArgumentError(absl::StrCat("--device ", device, ": want cpu, cuda or cuda:I"));
}

}  // namespace eps::worker
