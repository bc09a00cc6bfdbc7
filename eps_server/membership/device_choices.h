#ifndef EPS_SERVER_MEMBERSHIP_DEVICE_CHOICES_H_
#define EPS_SERVER_MEMBERSHIP_DEVICE_CHOICES_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/choices/choices.h"

namespace eps::server {

// Which choices hold for each device model of a run: the first that were offered, for ever.
//
// Threads: none of its own; the owner guards it.
class DeviceChoices {
 public:
  // `held`: by device model; what a checkpoint told.
  explicit DeviceChoices(std::map<std::string, Choices> held) : held_(std::move(held)) {}

  // What holds for `device_model`: `offered` if nothing did. `offered` was checked (CheckedChoices).
  // Errors: INVALID_ARGUMENT none is offered · RESOURCE_EXHAUSTED kMaxDeviceModels others have choices
  absl::StatusOr<Choices> Offer(const std::string& device_model, Choices offered);
  // Empty: nothing yet.
  Choices Held(const std::string& device_model) const;
  const std::map<std::string, Choices>& all() const { return held_; }

 private:
  std::map<std::string, Choices> held_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_MEMBERSHIP_DEVICE_CHOICES_H_
