#include "gpu_worker/device_sizes.h"

#include <algorithm>
#include <cstdint>
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

LibraryUse LibraryUseOf(const RunConfig& run, int threads) {
  return {.threads = threads,
          .B = run.batch.micro_batch,
          .T = run.model.context,
          .H = run.model.num_heads,
          .D = run.model.head_dim(),
          .has_documents = run.data.has_documents(),
          .drops = run.model.attention_dropout > 0};
}

// Of the total, and not of what is free: workers look one after the other, when the ones before have taken their share.
int64_t DefaultGpuMemoryBytes(int64_t free_bytes, int64_t total_bytes, int sharers) {
  return std::min(free_bytes, total_bytes / sharers) / 10 * 9;
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
