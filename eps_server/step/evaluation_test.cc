#include "eps_server/step/evaluation.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/step/step_report.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr int64_t kSteps = 10;
const EvaluationConfig kEveryFour = {.path = "/data", .every_steps = 4};

// Two vnodes of two counted tokens each.
std::vector<VnodeBatch> Round() {
  return {{.vnode = 0, .tokens = {1, 2, 3}, .labels = {2, 3, -100}},
          {.vnode = 1, .tokens = {1, 2, 3}, .labels = {2, 3, -100}}};
}

VnodeRecord Record(int vnode, double loss_sum, int64_t correct) {
  return {.vnode = vnode,
          .loss_sum = loss_sum,
          .counted_tokens = 2,
          .correct = correct,
          .chosen_reward = 2 * loss_sum,
          .rejected_reward = -loss_sum};
}

TEST(EvaluationTest, VersionsAreDueEverySoManyStepsAndAtTheLastOne) {
  const Evaluation evaluation(kEveryFour, kSteps, 1, Version(0));
  std::vector<int64_t> due;
  for (int64_t version = 0; version <= kSteps; ++version) {
    if (evaluation.IsDue(Version(version))) due.push_back(version);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{4, 8, 10}));
  EXPECT_FALSE(Evaluation({}, kSteps, 0, Version(0)).IsDue(Version(4)));
}

TEST(EvaluationTest, WhatTheRunBeginsWithIsDueWhereItIsAskedFor) {
  EvaluationConfig config = kEveryFour;
  config.at_start = true;
  Evaluation evaluation(config, kSteps, 1, Version(0));
  EXPECT_TRUE(evaluation.IsDue(Version(0)));
  EXPECT_FALSE(evaluation.IsDue(Version(1)));
  const auto left = [&](int64_t committed, int64_t end) {
    return evaluation.SecondsLeft(Version(committed), end, absl::ZeroDuration(), /*round_seconds=*/5);
  };
  EXPECT_EQ(left(0, 10), 4 * 5);
  EXPECT_EQ(left(0, 0), 5);
  evaluation.Begin(Version(0), absl::ZeroDuration());
  EXPECT_EQ(left(0, 0), 5) << "all of it";
  evaluation.Abandon();
  EXPECT_EQ(left(0, 10), 3 * 5) << "it is not made twice";
  EXPECT_FALSE(Evaluation(config, kSteps, 1, Version(1)).IsDue(Version(1)));
}

TEST(EvaluationTest, AResumedVersionIsEvaluatedAnewButNotThatOfARunThatIsDone) {
  EXPECT_TRUE(Evaluation(kEveryFour, kSteps, 1, Version(4)).IsDue(Version(4)));
  EXPECT_FALSE(Evaluation(kEveryFour, kSteps, 1, Version(10)).IsDue(Version(10)));
}

// Due are 4, 8 and 10.
TEST(EvaluationTest, WhatIsStillToComeTakesAsLongAsTheNewestAndOneThatGoesOnItsRest) {
  Evaluation evaluation(kEveryFour, kSteps, 2, Version(0));
  const auto left = [&](int64_t committed, int64_t end, double now) {
    return evaluation.SecondsLeft(Version(committed), end, absl::Seconds(now), /*round_seconds=*/5);
  };
  EXPECT_EQ(left(0, 10, 90), 3 * 2 * 5) << "no evaluation tells better";
  EXPECT_EQ(left(0, 7, 90), 2 * 5) << "it ends before the others are due";
  EXPECT_EQ(left(4, 10, 90), 3 * 2 * 5) << "4 is due and not begun";
  EXPECT_EQ(evaluation.Progress(absl::Seconds(90)), std::nullopt);

  evaluation.Begin(Version(4), absl::Seconds(100));
  EXPECT_EQ(left(4, 10, 100), 3 * 2 * 5);
  EXPECT_EQ(evaluation.Progress(absl::Seconds(101))->share, 0);
  ASSERT_EQ(evaluation.NextRead(), 0);
  evaluation.StartRound(Round());
  evaluation.Assign(WorkerId(1), {0, 1});
  ASSERT_OK(evaluation.AddRecords(WorkerId(1), Version(4), 0, {Record(0, 1.0, 0)}));
  EXPECT_EQ(evaluation.Progress(absl::Seconds(102))->share, 0.25) << "a vnode of two in a round of two";
  EXPECT_EQ(evaluation.Progress(absl::Seconds(102))->seconds, 2);
  EXPECT_EQ(evaluation.Progress(absl::Seconds(102))->version, Version(4));
  EXPECT_EQ(left(4, 10, 102), 6 + 2 * 8) << "as fast as it goes";
  ASSERT_OK(evaluation.AddRecords(WorkerId(1), Version(4), 0, {Record(1, 1.0, 0)}));
  ASSERT_TRUE(evaluation.FinishRound());
  EXPECT_EQ(evaluation.Progress(absl::Seconds(103))->share, 0.5);
  ASSERT_EQ(evaluation.NextRead(), 1);
  evaluation.StartRound(Round());
  evaluation.Assign(WorkerId(1), {0, 1});
  ASSERT_OK(evaluation.AddRecords(WorkerId(1), Version(4), 1, {Record(0, 1.0, 0), Record(1, 1.0, 0)}));
  ASSERT_TRUE(evaluation.FinishRound());
  ASSERT_TRUE(evaluation.Finish(absl::Seconds(107)).has_value());
  EXPECT_EQ(left(5, 10, 200), 2 * 7);
  EXPECT_EQ(left(4, 4, 200), 0);
  evaluation.Begin(Version(8), absl::Seconds(300));
  EXPECT_EQ(left(8, 10, 301), 2 * 7);
  EXPECT_EQ(Evaluation({}, kSteps, 0, Version(0)).SecondsLeft(Version(0), 10, absl::Seconds(1), 5), 0);
}

TEST(EvaluationTest, RoundsAreReadGivenOutAndAddedUpOneAfterTheOther) {
  Evaluation evaluation(kEveryFour, kSteps, 2, Version(0));
  const WorkerId one(1), two(2);
  evaluation.Begin(Version(4), absl::Seconds(100));
  EXPECT_FALSE(evaluation.IsDue(Version(4)));
  for (int64_t round = 0; round < 2; ++round) {
    ASSERT_EQ(evaluation.NextRead(), round);
    EXPECT_EQ(evaluation.NextRead(), std::nullopt);  // told once
    evaluation.StartRound(Round());
    const Assignment first = evaluation.Assign(one, {0});
    EXPECT_EQ(first.step, StepId(4));
    EXPECT_EQ(first.evaluation_round, round);
    EXPECT_EQ(first.counted_tokens, 4);
    evaluation.Assign(two, {1});
    ASSERT_OK(evaluation.AddRecords(two, Version(4), round, {Record(1, 2.0, 2)}));
    EXPECT_FALSE(evaluation.FinishRound());
    ASSERT_OK(evaluation.AddRecords(one, Version(4), round, {Record(0, 1.0, 0)}));
    EXPECT_EQ(evaluation.Finish(absl::Seconds(101)), std::nullopt);
    EXPECT_TRUE(evaluation.FinishRound());
    EXPECT_EQ(evaluation.ledger(), nullptr);
  }
  EXPECT_EQ(evaluation.NextRead(), std::nullopt);
  const std::optional<EvaluationReport> report = evaluation.Finish(absl::Seconds(103));
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->version, Version(4));
  EXPECT_EQ(report->loss, 6.0 / 8);
  EXPECT_EQ(report->accuracy, 0.5);
  EXPECT_EQ(report->rewards->chosen, 12.0 / 8);
  EXPECT_EQ(report->rewards->rejected, -6.0 / 8);
  EXPECT_EQ(report->rewards->margin(), 18.0 / 8);
  EXPECT_EQ(report->tokens, 8);
  EXPECT_EQ(report->seconds, 3);
  EXPECT_FALSE(evaluation.is_on());
  EXPECT_TRUE(evaluation.IsDue(Version(8)));
}

TEST(EvaluationTest, VnodesOfALostWorkerAreFreeAgainButThoseWhoseRecordIsIn) {
  Evaluation evaluation(kEveryFour, kSteps, 1, Version(0));
  EXPECT_EQ(evaluation.Lose(WorkerId(1)), 0);
  evaluation.Begin(Version(4), absl::ZeroDuration());
  evaluation.NextRead();
  evaluation.StartRound(Round());
  evaluation.Assign(WorkerId(1), {0, 1});
  ASSERT_OK(evaluation.AddRecords(WorkerId(1), Version(4), 0, {Record(1, 2.0, 1)}));
  EXPECT_EQ(evaluation.Lose(WorkerId(1)), 1);
  EXPECT_EQ(evaluation.ledger()->Unassigned(), std::vector<int>{0});
  evaluation.Assign(WorkerId(2), {0});
  ASSERT_OK(evaluation.AddRecords(WorkerId(2), Version(4), 0, {Record(0, 1.0, 1)}));
  EXPECT_TRUE(evaluation.FinishRound());
  EXPECT_EQ(evaluation.Finish(absl::ZeroDuration())->loss, 0.75);
}

TEST(EvaluationTest, LateRecordsAreDroppedAndThoseOfARoundThatWasNotGivenOutRefused) {
  Evaluation evaluation(kEveryFour, kSteps, 2, Version(0));
  const WorkerId worker(1);
  const std::vector<VnodeRecord> both = {Record(0, 1, 1), Record(1, 1, 1)};
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.evaluation_round");
  EXPECT_THAT(evaluation.AddRecords(worker, Version(4), 0, both), refused);
  evaluation.Begin(Version(4), absl::ZeroDuration());
  evaluation.NextRead();
  EXPECT_THAT(evaluation.AddRecords(worker, Version(4), 0, both), refused);
  evaluation.StartRound(Round());
  evaluation.Assign(worker, {0, 1});
  EXPECT_THAT(evaluation.AddRecords(worker, Version(4), 1, both), refused);
  EXPECT_THAT(evaluation.AddRecords(worker, Version(5), 0, both), refused);
  EXPECT_THAT(evaluation.AddRecords(worker, Version(4), -1, both), refused);
  EXPECT_THAT(evaluation.AddRecords(worker, Version(4), 0, {Record(0, 1, 3)}),
              StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.records.correct"));
  ASSERT_OK(evaluation.AddRecords(worker, Version(4), 0, both));
  ASSERT_TRUE(evaluation.FinishRound());
  EXPECT_OK(evaluation.AddRecords(worker, Version(4), 0, both));
  evaluation.Abandon();
  EXPECT_FALSE(evaluation.is_on());
  EXPECT_OK(evaluation.AddRecords(worker, Version(4), 1, both));
  EXPECT_EQ(evaluation.Finish(absl::ZeroDuration()), std::nullopt);
}

TEST(EvaluationTest, WhatIsReadAfterTheEndIsDropped) {
  Evaluation evaluation(kEveryFour, kSteps, 1, Version(0));
  evaluation.Begin(Version(4), absl::ZeroDuration());
  ASSERT_EQ(evaluation.NextRead(), 0);
  evaluation.Abandon();
  evaluation.StartRound(Round());
  EXPECT_EQ(evaluation.ledger(), nullptr);
}

TEST(EvaluationTest, WhereNothingIsCountedTheLossIsNoNumber) {
  Evaluation evaluation(kEveryFour, kSteps, 1, Version(0));
  evaluation.Begin(Version(10), absl::ZeroDuration());
  evaluation.NextRead();
  evaluation.StartRound({{.vnode = 0, .tokens = {1}, .labels = {-100}}});
  evaluation.Assign(WorkerId(1), {0});
  ASSERT_OK(evaluation.AddRecords(WorkerId(1), Version(10), 0, {VnodeRecord{.vnode = 0}}));
  ASSERT_TRUE(evaluation.FinishRound());
  const EvaluationReport report = *evaluation.Finish(absl::ZeroDuration());
  EXPECT_TRUE(std::isnan(report.loss));
  EXPECT_TRUE(std::isnan(report.accuracy));
  EXPECT_FALSE(report.rewards.has_value());
  EXPECT_EQ(report.tokens, 0);
}

}  // namespace
}  // namespace eps::server
