#ifndef EPS_SERVER_MEMBERSHIP_DEVICE_MODELS_H_
#define EPS_SERVER_MEMBERSHIP_DEVICE_MODELS_H_

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/run_config.h"

namespace eps::server {

// With which device models a run is computed, over all its sittings: its bits are promised for one (docs/notation.md).
//
// Threads: none of its own; the owner guards it.
class DeviceModels {
 public:
  // `used`: what a checkpoint told.
  DeviceModels(DeviceModelRule rule, std::set<std::string> used) : rule_(rule), used_(std::move(used)) {}

  // Errors: INVALID_ARGUMENT the rule is kOne, and the run was computed with several: names them
  absl::Status CheckRule() const;

  // A worker of `model` comes, while one of `present`, another one, takes part ("": none does). Returns a model with which
  // it would be mixed, "" if there is none. One that the run was computed with already mixes no more than there is.
  // Errors, where the rule is kOne: INVALID_ARGUMENT the run was computed with another: names both, and what to do ·
  //         UNAVAILABLE it was computed with none yet, and `present` may be the first, or go
  absl::StatusOr<std::string> Admit(absl::string_view model, absl::string_view present) const;
  // One of its workers is given virtual nodes of a step.
  void Use(const std::string& model);
  const std::set<std::string>& used() const { return used_; }

 private:
  DeviceModelRule rule_;
  std::set<std::string> used_;  // at most kMaxDeviceModels
};

}  // namespace eps::server

#endif  // EPS_SERVER_MEMBERSHIP_DEVICE_MODELS_H_
