#ifndef EPS_SERVER_OPTIMIZER_DIVERGENCE_H_
#define EPS_SERVER_OPTIMIZER_DIVERGENCE_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace eps::server {

// Why a run ends that has diverged: OUT_OF_RANGE, which no other failure of a run is. Its bits are promised, so that with
// --resume it would diverge again, at the same step; or, where steps were skipped, at the next one that is.
// what: "the loss of vnode 3 is not finite"
inline absl::Status DivergedError(StepId step, absl::string_view what) {
  return absl::OutOfRangeError(
      absl::StrCat("step ", step.value(), ": ", what, "; lower optimizer.schedule.peak, or warm up longer"));
}

// Of why a run has failed.
inline bool HasDiverged(const absl::Status& failure) { return absl::IsOutOfRange(failure); }

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_DIVERGENCE_H_
