#include "common/run_folder/run_folder.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"

namespace eps {

bool RunFolder::HoldsCheckpoints() const {
  const absl::StatusOr<std::vector<Version>> steps = checkpoints().Steps();
  return steps.ok() && !steps->empty();
}

absl::Status RunFolder::CheckHoldsNoRun() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<Version> steps, checkpoints().Steps());
  if (steps.empty()) return CheckCanGoOn();
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", path_,
                   " holds a run already: give --resume to go on from its newest checkpoint, or another folder for a "
                   "new run"));
}

absl::Status RunFolder::CheckCanGoOn() const {
  std::error_code ignored;
  if (HoldsCheckpoints() || !std::filesystem::exists(summary(), ignored)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", path_,
                   " holds a run already, which has ended and left no checkpoint: there is nothing to go on from; give "
                   "another folder for a new run"));
}

}  // namespace eps
