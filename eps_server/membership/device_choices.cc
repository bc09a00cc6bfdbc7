#include "eps_server/membership/device_choices.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/run_state.h"

namespace eps::server {

absl::StatusOr<Choices> DeviceChoices::Offer(const std::string& device_model, Choices offered) {
  if (offered.empty()) return absl::InvalidArgumentError("choices: none of them, want at least one");
  if (const auto found = held_.find(device_model); found != held_.end()) return found->second;
  if (held_.size() >= kMaxDeviceModels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("choices: those of ", held_.size(), " other device models are held, and no more can be"));
  }
  return held_.emplace(device_model, std::move(offered)).first->second;
}

Choices DeviceChoices::Held(const std::string& device_model) const {
  const auto found = held_.find(device_model);
  return found == held_.end() ? Choices() : found->second;
}

}  // namespace eps::server
