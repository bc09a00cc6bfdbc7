#include "common/spec/spec_warnings.h"

#include <string>
#include <vector>

#include "common/spec/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunConfig RunOfSteps(int64_t steps) {
  RunConfig run;
  run.steps = steps;
  run.optimizer.peak_learning_rate = 0.5;
  return run;
}

std::vector<std::string> TextsOf(const RunConfig& run) {
  std::vector<std::string> texts;
  for (const SpecWarning& warning : FindSpecWarnings(run)) texts.push_back(warning.field + ": " + warning.why);
  return texts;
}

TEST(SpecWarningsTest, WhatReachesItsAimIsTakenWithoutAWord) {
  RunConfig run = RunOfSteps(10);
  EXPECT_THAT(TextsOf(run), IsEmpty());
  run.optimizer.warmup_steps = 9;
  run.optimizer.decay = ScheduleDecay::kCosine;
  run.optimizer.final_learning_rate = 0.5;
  run.evaluation.every_steps = 10;
  EXPECT_THAT(TextsOf(run), IsEmpty());
}

TEST(SpecWarningsTest, AScheduleBeyondTheRunsStepsIsNamed) {
  RunConfig run = RunOfSteps(10);
  run.optimizer.warmup_steps = 10;
  run.evaluation.every_steps = 11;
  EXPECT_THAT(TextsOf(run),
              ElementsAre("optimizer.schedule.warmup_steps: 10: all of the run's 10 steps are warm-up",
                          "evaluation.every_steps: 11: of the run's 10 steps only the last is evaluated"));
}

TEST(SpecWarningsTest, ARateThatRisesWhereItShouldDecayIsNamed) {
  RunConfig run = RunOfSteps(10);
  run.optimizer.final_learning_rate = 0.75;
  EXPECT_THAT(TextsOf(run), IsEmpty()) << "a constant one has no end";
  for (const ScheduleDecay decay : {ScheduleDecay::kLinear, ScheduleDecay::kCosine, ScheduleDecay::kOneMinusSqrt}) {
    run.optimizer.decay = decay;
    EXPECT_THAT(
        TextsOf(run),
        ElementsAre("optimizer.schedule.final: 0.75: above the peak, 0.5: the rate rises where it should decay"));
  }
}

TEST(SpecWarningsTest, AdaptersAsLargeAsTheirProductsAreCounted) {
  RunConfig run = RunOfSteps(10);
  run.model = {.num_layers = 2, .d_model = 64, .num_heads = 2, .context = 4, .vocab = 10};
  run.model.lora = {.rank = 31, .alpha = 1};
  EXPECT_THAT(TextsOf(run), IsEmpty());
  run.model.lora.rank = 32;  // of 64 x 64: attn.c_proj of both blocks
  run.model.freeze = {"*.lora_A.*"};
  EXPECT_THAT(TextsOf(run),
              ElementsAre("model.lora.rank: 32: 2 adapters have as many parameters as the product beside, "
                          "or more"));
}

TEST(SpecWarningsTest, DropoutThatTheReferenceHasNotIsNamed) {
  RunConfig run = RunOfSteps(10);
  run.model.attention_dropout = 0.1;
  run.preferences.rule = PreferenceRule::kSimPo;
  EXPECT_THAT(TextsOf(run), IsEmpty());
  run.preferences.rule = PreferenceRule::kDpo;
  EXPECT_THAT(TextsOf(run),
              ElementsAre("model.attention_dropout: 0.1: DPO compares with a model that drops nothing; 0 is usual"));
}

}  // namespace
}  // namespace eps
