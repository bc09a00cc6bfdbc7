#include "gpu_worker/device/cuda/kernel_code.h"

#include "absl/strings/str_cat.h"

namespace eps::worker::cuda {

std::string NameOf(const KernelCode& code, absl::string_view toolkit, absl::string_view driver) {
  // The programs have no other PTX than compute_80, and that only beside machine code for sm_80, of which every sm_8x makes
  // use (third_party/cuda/cuda_objects.bzl), unless CUDA_FORCE_PTX_JIT says otherwise, which is for trying things out.
  constexpr int kOnlyPtx = 80;
  const bool by_driver = code.ptx == kOnlyPtx && code.machine / 10 != kOnlyPtx / 10;
  if (by_driver) {
    return absl::StrCat("kernels of CUDA ", toolkit, " from compute_", code.ptx, " by CUDA ", driver, "'s driver");
  }
  return absl::StrCat("kernels of CUDA ", toolkit, " for sm_", code.machine);
}

}  // namespace eps::worker::cuda
