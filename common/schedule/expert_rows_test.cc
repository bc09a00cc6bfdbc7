#include "common/schedule/expert_rows.h"

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr ToldExperts kTold = {.blocks = 2, .experts = 3, .per_token = 2};

TEST(ExpertRowsTest, AreToldOfEveryExpertOfEveryBlock) {
  ModelConfig model;
  model.num_layers = 48;
  EXPECT_EQ(ToldExpertsOf(model, 1).size(), 0);
  model.experts = {.num = 128, .per_token = 8};
  const ToldExperts told = ToldExpertsOf(model, 16);
  EXPECT_EQ(told.blocks, 48);
  EXPECT_EQ(told.experts, 128);
  EXPECT_EQ(told.per_token, 8);
  model.num_layers = 512;
  EXPECT_EQ(ToldExpertsOf(model, 64).size(), kMostToldExperts);
  EXPECT_EQ(ToldExpertsOf(model, 65).size(), 0);
  model.num_layers = 513;
  EXPECT_EQ(ToldExpertsOf(model, 1).size(), 0);
}

TEST(ExpertRowsTest, EachBlockHasAllRoutedRowsOrIsLeftOut) {
  EXPECT_OK(CheckExpertRows({1, 2, 3, 6, 0, 0}, kTold, 3));
  EXPECT_OK(CheckExpertRows({0, 0, 0, 6, 0, 0}, kTold, 3));
  EXPECT_OK(CheckExpertRows({}, {}, 3));
  EXPECT_THAT(CheckExpertRows({1, 2, 3}, kTold, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, "3 numbers, want 6, one for each of 3 experts of 2 blocks"));
  EXPECT_THAT(CheckExpertRows({1}, {}, 3), StatusIs(absl::StatusCode::kInvalidArgument, "1 numbers, want 0"));
  EXPECT_THAT(CheckExpertRows({1, 2, 3, 6, 1, 0}, kTold, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, "block 1 has 7 rows, want 6: 2 for each of 3 tokens"));
  // A sum that wraps in 32 bits to what is wanted.
  EXPECT_THAT(CheckExpertRows({0xffffffffu, 7, 0, 6, 0, 0}, kTold, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, "block 0 has 4294967302 rows"));
}

}  // namespace
}  // namespace eps
