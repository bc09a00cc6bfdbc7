#include "eps_server/step/expert_load.h"

#include <cmath>

#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr ToldExperts kTold = {.blocks = 3, .experts = 4, .per_token = 2};

TEST(ExpertLoadTest, IsOfRowsOverAnEvenShare) {
  const ExpertLoad load = *LoadOf({3, 3, 3, 3, 0, 6, 6, 0, 1, 2, 6, 3}, kTold);
  EXPECT_EQ(load.experts, 4);
  ASSERT_EQ(load.load.size(), 12u);
  for (int expert = 0; expert < 4; ++expert) EXPECT_EQ(load.load[expert], 1) << expert;
  EXPECT_EQ(load.load[4], 0);
  EXPECT_EQ(load.load[5], 2);
  EXPECT_FLOAT_EQ(load.load[9], 2.0f / 3);
  EXPECT_EQ(load.busiest, 2);  // the first of three
  EXPECT_EQ(load.busiest_block, 1);
  EXPECT_EQ(load.busiest_expert, 1);
  EXPECT_DOUBLE_EQ(load.mean_busiest, 5.0 / 3);
  EXPECT_EQ(load.idle, 2);
  EXPECT_EQ(load.running, 12);
}

TEST(ExpertLoadTest, ABlockThatTheStepLeftOutIsNoIdleOne) {
  const ExpertLoad load = *LoadOf({0, 0, 0, 0, 12, 0, 0, 0, 3, 3, 3, 3}, kTold);
  EXPECT_TRUE(std::isnan(load.load[0]) && std::isnan(load.load[3]));
  EXPECT_EQ(load.busiest, 4);
  EXPECT_EQ(load.busiest_block, 1);
  EXPECT_EQ(load.mean_busiest, 2.5);
  EXPECT_EQ(load.idle, 3);
  EXPECT_EQ(load.running, 8);
}

TEST(ExpertLoadTest, WithoutRowsThereIsNone) {
  EXPECT_FALSE(LoadOf({}, {}).has_value());
  EXPECT_FALSE(LoadOf({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, kTold).has_value());
}

}  // namespace
}  // namespace eps::server
