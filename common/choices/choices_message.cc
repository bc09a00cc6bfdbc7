#include "common/choices/choices_message.h"

#include <string>
#include <utility>
#include <vector>

namespace eps {

absl::StatusOr<Choices> ChoicesFromProto(const google::protobuf::RepeatedPtrField<proto::Choice>& choices) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const proto::Choice& choice : choices) pairs.emplace_back(choice.key(), choice.value());
  return CheckedChoices(pairs, "choices");
}

proto::Choices ChoicesToProto(const Choices& choices) {
  proto::Choices message;
  for (const auto& [key, value] : choices) {
    proto::Choice& choice = *message.add_choices();
    choice.set_key(key);
    choice.set_value(value);
  }
  return message;
}

}  // namespace eps
