#include "eps_server/optimizer/schedule.h"

#include <cmath>

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

TEST(ScheduleTest, OneMinusSqrtFallsFastFirst) {
  const OptimizerConfig config = Schedule(ScheduleDecay::kOneMinusSqrt, 2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 19, StepId(2)), 8);
  EXPECT_DOUBLE_EQ(LearningRate(config, 19, StepId(3)), 8 - 6 * 0.25);  // a sixteenth of the way
  EXPECT_DOUBLE_EQ(LearningRate(config, 19, StepId(6)), 8 - 6 * 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(config, 19, StepId(18)), 2);
}

TEST(ScheduleTest, InverseSqrtGoesByTheWarmUpAlone) {
  const OptimizerConfig config = Schedule(ScheduleDecay::kInverseSqrt, 4);
  for (const int64_t steps : {16, 1000}) {
    EXPECT_DOUBLE_EQ(LearningRate(config, steps, StepId(0)), 2);
    EXPECT_DOUBLE_EQ(LearningRate(config, steps, StepId(3)), 8);
    EXPECT_DOUBLE_EQ(LearningRate(config, steps, StepId(4)), 8 * std::sqrt(4.0 / 5));
    EXPECT_DOUBLE_EQ(LearningRate(config, steps, StepId(15)), 4);
  }
}

TEST(ScheduleTest, StaysAtThePeakUntilTheLastDecaySteps) {
  for (const ScheduleDecay decay : {ScheduleDecay::kLinear, ScheduleDecay::kCosine, ScheduleDecay::kOneMinusSqrt}) {
    OptimizerConfig config = Schedule(decay, 3);
    config.decay_steps = 4;
    for (const int64_t s : {2, 3, 10, 15}) EXPECT_DOUBLE_EQ(LearningRate(config, 20, StepId(s)), 8) << s;
    for (const int64_t s : {16, 17, 18}) {
      EXPECT_LT(LearningRate(config, 20, StepId(s)), LearningRate(config, 20, StepId(s - 1))) << s;
    }
    EXPECT_DOUBLE_EQ(LearningRate(config, 20, StepId(19)), 2);
    // What the warm-up leaves, where that is less.
    OptimizerConfig all = config;
    all.decay_steps = 0;
    for (int64_t s = 0; s < 6; ++s) {
      EXPECT_DOUBLE_EQ(LearningRate(config, 6, StepId(s)), LearningRate(all, 6, StepId(s))) << s;
    }
  }
  OptimizerConfig linear = Schedule(ScheduleDecay::kLinear, 0);
  linear.decay_steps = 4;
  EXPECT_DOUBLE_EQ(LearningRate(linear, 20, StepId(16)), 6.5);
}

TEST(ScheduleTest, ShortRunsHaveNoHole) {
  // The only step after the warm-up is the last one; a run that ends in its warm-up never decays.
  for (const ScheduleDecay decay : {ScheduleDecay::kLinear, ScheduleDecay::kCosine, ScheduleDecay::kOneMinusSqrt}) {
    OptimizerConfig config = Schedule(decay, 3);
    for (const int64_t decay_steps : {0, 1, 5}) {
      config.decay_steps = decay_steps;
      EXPECT_DOUBLE_EQ(LearningRate(config, 4, StepId(3)), 8);
      EXPECT_DOUBLE_EQ(LearningRate(config, 5, StepId(3)), 8);
      EXPECT_DOUBLE_EQ(LearningRate(config, 5, StepId(4)), 2);
    }
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(decay, 0), 1, StepId(0)), 8);
    EXPECT_DOUBLE_EQ(LearningRate(Schedule(decay, 0), 2, StepId(1)), 2);
  }
  EXPECT_DOUBLE_EQ(LearningRate(Schedule(ScheduleDecay::kLinear, 10), 5, StepId(4)), 4);
}

}  // namespace
}  // namespace eps::server
