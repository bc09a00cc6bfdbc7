#include "common/choices/choices_message.h"

#include "absl/status/status.h"
#include "common/choices/choices.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"

namespace eps {
namespace {

TEST(ChoicesMessageTest, ChoicesComeThroughWholeOrAreRefusedByField) {
  const Choices choices = {{"a product", "00ff"}, {"b", "1"}};
  proto::Choices message = ChoicesToProto(choices);
  EXPECT_THAT(ChoicesFromProto(message.choices()), IsOkAndHolds(choices));
  message.mutable_choices(1)->set_key("a product");
  EXPECT_THAT(ChoicesFromProto(message.choices()),
              StatusIs(absl::StatusCode::kInvalidArgument, "choices[1].key: \"a product\" comes twice"));
  message.mutable_choices(1)->set_key("\n");
  EXPECT_THAT(ChoicesFromProto(message.choices()),
              StatusIs(absl::StatusCode::kInvalidArgument, "choices[1].key: has bytes"));
}

}  // namespace
}  // namespace eps
