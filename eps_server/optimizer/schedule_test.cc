#include "eps_server/optimizer/schedule.h"

#include "common/base/ids.h"
#include "common/spec/run_config.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

OptimizerConfig Schedule(ScheduleDecay decay, int64_t warmup) {
  OptimizerConfig config;
  config.peak_learning_rate = 8;
  config.final_learning_rate = 2;
  config.warmup_steps = warmup;
  config.decay = decay;
  return config;
}

TEST(ScheduleTest, WarmsUpToThePeak) {
  for (const ScheduleDecay decay : {ScheduleDecay::kConstant, ScheduleDecay::kLinear, ScheduleDecay::kCosine}) {
    const OptimizerConfig config = Schedule(decay, 4);
    EXPECT_DOUBLE_EQ(LearningRate(config, 100, StepId(0)), 2);
    EXPECT_DOUBLE_EQ(LearningRate(config, 100, StepId(3)), 8);
    EXPECT_DOUBLE_EQ(LearningRate(config, 100, StepId(4)), 8);
  }
}

TEST(ScheduleTest, ReachesFinalAtTheLastStep) {
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kConstant, 0), 5, StepId(4)), 8);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kLinear, 0), 5, StepId(4)), 2);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kCosine, 0), 5, StepId(4)), 2);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kLinear, 0), 5, StepId(0)), 8);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kLinear, 0), 5, StepId(1)), 6.5);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kCosine, 0), 5, StepId(2)), 5);
  EXPECT_NEAR(LearningRate(Schedule(ScheduleDecay::kCosine, 2), 7, StepId(3)), 2 + 6 * (1 + 0.70710678) / 2, 1e-7);
}

TEST(ScheduleTest, ShortRunsHaveNoHole) {
  // The only step after the warm-up is the last one; a run that ends in its warm-up never decays.
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kLinear, 3), 4, StepId(3)), 2);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kCosine, 0), 1, StepId(0)), 2);
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kLinear, 10), 5, StepId(4)), 4);
}

}  // namespace
}  // namespace eps::server
