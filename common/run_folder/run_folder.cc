#include "common/run_folder/run_folder.h"

#include <limits.h>

#include <cstddef>
#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

// What a run puts behind its folder's path: "/checkpoints/.removed-step-00000120/optimizer.safetensors.tmp.4194304.1", with
// room for more steps and tries.
constexpr size_t kLongestName = 128;

}  // namespace

bool RunFolder::HoldsCheckpoints() const { return checkpoints().HoldsAny().value_or(false); }

absl::Status RunFolder::CheckHoldsNoRun() const {
  EPS_RETURN_IF_ERROR(CheckCanGoOn());
  if (!HoldsCheckpoints()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", path_,
                   " holds a run already: give --resume to go on from its newest checkpoint, or another folder for a "
                   "new run"));
}

absl::Status RunFolder::CheckCanGoOn() const {
  if (path_.size() + kLongestName > PATH_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", path_.size(), " bytes, at most ", PATH_MAX - kLongestName,
                                                   ", as the system takes paths of ", PATH_MAX));
  }
  EPS_ASSIGN_OR_RETURN(const bool holds_any, checkpoints().HoldsAny());
  std::error_code ignored;
  if (holds_any || !std::filesystem::exists(summary(), ignored)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", path_,
                   " holds a run already, which has ended and left no checkpoint: there is nothing to go on from; give "
                   "another folder for a new run"));
}

}  // namespace eps
