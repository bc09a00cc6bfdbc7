#include "eps_server/membership/device_models.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/run_state.h"

namespace eps::server {
namespace {

// The cpu device's, which begin so, can be made alike on processors that are not.
bool IsCpu(absl::string_view model) { return absl::StartsWith(model, "cpu "); }

}  // namespace

absl::Status DeviceModels::CheckRule() const {
  if (rule_ == DeviceModelRule::kAny || used_.size() < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("relay.device_models: ONE: the run was computed with ", used_.size(),
                                                 " of them, \"", absl::StrJoin(used_, "\", \""), "\"; set it to ANY"));
}

absl::StatusOr<std::string> DeviceModels::Admit(absl::string_view model, absl::string_view present) const {
  const auto used = std::find_if(used_.begin(), used_.end(), [&](const std::string& other) { return other != model; });
  const std::string other = !present.empty() ? std::string(present) : used != used_.end() ? *used : "";
  if (rule_ == DeviceModelRule::kAny) {
    return present.empty() && used_.count(std::string(model)) > 0 ? "" : other;
  }
  if (other.empty()) return other;
  const std::string what =
      absl::StrCat("relay.device_models: ONE: this worker computes with \"", model, "\", ",
                   used_.empty() ? "one that came before it with \"" : "the run was computed with \"", other, "\"",
                   IsCpu(model) && IsCpu(other) ? "; --vectors avx2 or avx512, from a run's first step on, makes one "
                                                  "device model of processors that have them"
                                                : "",
                   "; with ANY the last bits are others");
  return used_.empty() ? absl::UnavailableError(what) : absl::InvalidArgumentError(what);
}

void DeviceModels::Use(const std::string& model) {
  if (used_.size() < kMaxDeviceModels) used_.insert(model);
}

}  // namespace eps::server
