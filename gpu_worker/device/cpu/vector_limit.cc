#include "gpu_worker/device/cpu/vector_limit.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/vector_width.h"
#include "gpu_worker/device/cpu/vector_targets.h"
#include "hwy/targets.h"
#include "oneapi/dnnl/dnnl.h"

namespace eps::worker {
namespace {

std::string Naming(absl::string_view width, absl::string_view why) {
  return absl::StrCat("--vectors ", width, ": ", why);
}

}  // namespace

absl::Status LimitVectors(absl::string_view width) {
  if (width == kWidestVectors) return absl::OkStatus();
  if (width != "avx2" && width != "avx512") {
    return absl::InvalidArgumentError(
        Naming(width, absl::StrCat("must be one of ", absl::StrJoin(kVectorWidths, ", "))));
  }
#if defined(__x86_64__)
  const int64_t best = width == "avx2" ? HWY_AVX2 : HWY_AVX3;
  const int64_t supported = hwy::SupportedTargets();
  if ((supported & best) == 0) {
    return absl::InvalidArgumentError(Naming(width, "this processor does not have such instructions"));
  }
  const dnnl_status_t set = dnnl_set_max_cpu_isa(width == "avx2" ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_avx512_core);
  if (set != dnnl_success) {
    return absl::FailedPreconditionError(Naming(width, "oneDNN has computed with others already"));
  }
  // Better targets have lower bits. Not by DisableTargets: SupportedTargets, which the device asks, makes the dispatchers
  // forget that in Highway 1.0.
  hwy::SetSupportedTargetsForTest(supported & ~(best - 1));
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return absl::OkStatus();
#else
  return absl::InvalidArgumentError(Naming(width, "this program is for another kind of processor"));
#endif
}

}  // namespace eps::worker
