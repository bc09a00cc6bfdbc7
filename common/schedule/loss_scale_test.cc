#include "common/schedule/loss_scale.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(LossScaleTest, DoublesAfterSoManyFiniteStepsAndHalvesAtOnce) {
  const LossScaleRule rule = {.growth_interval = 3};
  LossScale scale = {1024};
  scale = NextLossScale(rule, NextLossScale(rule, scale, true), true);
  EXPECT_EQ(scale, (LossScale{1024, 2}));
  EXPECT_EQ(NextLossScale(rule, scale, true), (LossScale{2048, 0}));
  EXPECT_EQ(NextLossScale(rule, scale, false), (LossScale{512, 0}));  // and counts anew
}

TEST(LossScaleTest, StaysWithinBounds) {
  const LossScaleRule rule = {.growth_interval = 1};
  EXPECT_EQ(NextLossScale(rule, {kMaxLossScale}, true), LossScale{kMaxLossScale});
  EXPECT_EQ(NextLossScale(rule, {kMinLossScale}, false), LossScale{kMinLossScale});
}

TEST(LossScaleTest, WithoutAnIntervalItOnlyFalls) {
  const LossScaleRule rule = {.growth_interval = 0};
  EXPECT_EQ(NextLossScale(rule, {1024}, true), LossScale{1024});
  EXPECT_EQ(NextLossScale(rule, {1024}, false), LossScale{512});
}

}  // namespace
}  // namespace eps
