#include "eps_server/membership/device_choices.h"

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/run_state.h"
#include "common/choices/choices.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using absl::StatusCode;

TEST(DeviceChoicesTest, TheFirstOfferOfADeviceModelHolds) {
  DeviceChoices choices({});
  EXPECT_TRUE(choices.Held("A").empty());
  EXPECT_THAT(choices.Offer("A", {{"product", "1"}}), IsOkAndHolds(Choices{{"product", "1"}}));
  EXPECT_THAT(choices.Offer("A", {{"product", "2"}, {"more", "3"}}), IsOkAndHolds(Choices{{"product", "1"}}));
  EXPECT_THAT(choices.Offer("B", {{"product", "2"}}), IsOkAndHolds(Choices{{"product", "2"}}));
  EXPECT_EQ(choices.Held("A"), (Choices{{"product", "1"}}));
  EXPECT_EQ(choices.all().size(), 2u);
}

TEST(DeviceChoicesTest, WhatACheckpointToldHoldsAgainstEveryOffer) {
  DeviceChoices choices({{"A", {{"product", "1"}}}});
  EXPECT_EQ(choices.Held("A"), (Choices{{"product", "1"}}));
  EXPECT_THAT(choices.Offer("A", {{"product", "2"}}), IsOkAndHolds(Choices{{"product", "1"}}));
}

TEST(DeviceChoicesTest, WhatCannotBeHeldIsRefusedAndChangesNothing) {
  DeviceChoices choices({});
  EXPECT_THAT(choices.Offer("A", {}), StatusIs(StatusCode::kInvalidArgument, "choices: none"));
  EXPECT_TRUE(choices.all().empty());
  for (size_t i = 0; i < kMaxDeviceModels; ++i) EXPECT_OK(choices.Offer(absl::StrCat(i), {{"product", "1"}}));
  EXPECT_THAT(choices.Offer("one more", {{"product", "1"}}),
              StatusIs(StatusCode::kResourceExhausted, "16 other device models"));
  EXPECT_THAT(choices.Offer("3", {{"product", "2"}}), IsOkAndHolds(Choices{{"product", "1"}}));
  EXPECT_EQ(choices.all().size(), kMaxDeviceModels);
}

}  // namespace
}  // namespace eps::server
