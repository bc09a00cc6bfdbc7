#ifndef EPS_COMMON_CHOICES_CHOICES_MESSAGE_H_
#define EPS_COMMON_CHOICES_CHOICES_MESSAGE_H_

#include "absl/status/statusor.h"
#include "common/choices/choices.h"
#include "google/protobuf/repeated_field.h"
#include "proto/control.pb.h"

namespace eps {

// Choices as the control plane carries them, for both of its ends.

// Errors: CheckedChoices', of the field "choices"
absl::StatusOr<Choices> ChoicesFromProto(const google::protobuf::RepeatedPtrField<proto::Choice>& choices);
proto::Choices ChoicesToProto(const Choices& choices);

}  // namespace eps

#endif  // EPS_COMMON_CHOICES_CHOICES_MESSAGE_H_
