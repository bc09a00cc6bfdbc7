// Evaluations of the coordinator's versions.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/coordinator_test_run.h"
#include "eps_server/step/coordinator_test_worker.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// ---- evaluations: 11 samples, of which a round takes 8 ----

RunConfig EvaluatedRun(RunConfig config = SmallRun()) {
  config.evaluation.every_steps = 3;
  return config;
}

// What a run of one worker finds.
std::vector<EvaluationReport> ReferenceEvaluations(const RunConfig& config) {
  TestRun run(config);
  FakeWorker worker(run);
  EXPECT_OK(run.coordinator->WaitUntilFinished());
  return run.reports.evaluations();
}

void ExpectSame(const std::vector<EvaluationReport>& found, const std::vector<EvaluationReport>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].version, wanted[i].version);
    EXPECT_EQ(found[i].loss, wanted[i].loss);
    EXPECT_EQ(found[i].accuracy, wanted[i].accuracy);
    EXPECT_EQ(found[i].tokens, wanted[i].tokens);
  }
}

TEST_P(CoordinatorModeTest, EvaluationsAreMadeInStepOrderTheSameForAnyWorkersAndChangeNoBits) {
  const std::string want = Reference(Config());
  const std::vector<EvaluationReport> evaluations = ReferenceEvaluations(EvaluatedRun(Config()));
  for (const int workers : {1, 3, 5}) {
    TestRun run(EvaluatedRun(Config()), {.expected_workers = workers, .threads = workers});
    std::vector<std::unique_ptr<FakeWorker>> fleet;
    for (int i = 0; i < workers; ++i) fleet.push_back(std::make_unique<FakeWorker>(run));
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(4) == want) << workers;
    EXPECT_EQ(run.reports.steps_before(), (std::vector<int64_t>{3, 4}));
    ExpectSame(run.reports.evaluations(), evaluations);
  }
  EXPECT_EQ(evaluations[0].version, Version(3));
  EXPECT_EQ(evaluations[1].version, Version(4));
  EXPECT_NE(evaluations[0].loss, evaluations[1].loss);
  EXPECT_EQ(evaluations[0].tokens, 88);
  EXPECT_EQ(evaluations[0].accuracy, 0.5);
  EXPECT_FALSE(evaluations[0].rewards.has_value()) << "of preferences alone";
}

TEST(CoordinatorEvaluationTest, WhatTheRunBeginsWithIsEvaluatedBeforeTheFirstStep) {
  RunConfig config = EvaluatedRun();
  config.evaluation.at_start = true;
  TestRun run(config, {.expected_workers = 2});
  FakeWorker first(run), second(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.reports.steps_before(), (std::vector<int64_t>{0, 3, 4}));
  EXPECT_EQ(run.reports.evaluations()[0].version, Version(0));
  EXPECT_TRUE(run.Result(4) == Reference(SmallRun()));
}

// Every checkpoint that it may make, it makes.
RunConfig RunWithoutSteps() {
  RunConfig config = EvaluatedRun();
  config.evaluation.at_start = true;
  return config;
}

TEST(CoordinatorEvaluationTest, WithoutAStepTheRunEndsOnceItsVersionIsEvaluated) {
  const RunConfig config = RunWithoutSteps();
  const EvaluationReport want = ReferenceEvaluations(config)[0];
  TestRun run(config, {.expected_workers = 2, .most_steps = 0});
  FakeWorker first(run);
  WaitFor([&] { return run.coordinator->Status().counts.workers_attached == 1; });
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  FakeWorker second(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(first.finished_ok());
  EXPECT_EQ(run.committed(), 0);
  EXPECT_TRUE(run.checkpointer->snapshots().empty());
  ExpectSame(run.reports.evaluations(), {want});
  const RunStatus status = run.coordinator->Status();
  EXPECT_TRUE(status.evaluation.has_value());
  EXPECT_EQ(status.phase, RunPhase::kFinished);
  EXPECT_EQ(status.steps, 0);
}

TEST(CoordinatorEvaluationTest, ACheckpointThatIsEvaluatedIsNoneOfThisRuns) {
  Snapshot snapshot;
  {
    TestRun run(RunWithoutSteps(), {.most_steps = 2});
    FakeWorker worker(run);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    snapshot = run.checkpointer->snapshots().at(2);
  }
  RunConfig config = RunWithoutSteps();
  config.evaluation.every_steps = 1;
  TestRun run(config, {.most_steps = 0, .resume = &snapshot});
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ASSERT_EQ(run.reports.evaluations().size(), 1u);
  EXPECT_EQ(run.reports.evaluations()[0].version, Version(2));
  const RunStatus status = run.coordinator->Status();
  EXPECT_TRUE(status.evaluates);
  EXPECT_EQ(status.step, 2);
  EXPECT_EQ(status.steps, 2);
  EXPECT_EQ(status.checkpoint_step, -1);
}

TEST(CoordinatorEvaluationTest, WithoutAStepNoCheckpointIsMadeWhoeverAsksAndHoweverItEnds) {
  TestRun run(RunWithoutSteps(), {.most_steps = 0});
  FakeWorker worker(run, {.holds_evaluations = true});
  WaitFor([&] { return worker.is_evaluating(); });
  absl::Status asked;
  run.coordinator->RequestCheckpoint([&](absl::StatusOr<std::string> path) { asked = path.status(); });
  EXPECT_THAT(asked, StatusIs(absl::StatusCode::kFailedPrecondition, "makes no checkpoint"));
  ASSERT_OK(run.coordinator->RequestStop("test").status());
  worker.ReleaseEvaluations();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.checkpointer->snapshots().empty());
  EXPECT_TRUE(run.reports.evaluations().empty());
  EXPECT_FALSE(run.coordinator->Status().evaluation.has_value());
}

TEST(CoordinatorEvaluationTest, AStopBeforeTheFirstStepLeavesItsEvaluationToTheResumedRun) {
  const RunConfig config = RunWithoutSteps();
  const std::vector<EvaluationReport> want = ReferenceEvaluations(config);
  Snapshot snapshot;
  {
    TestRun run(config);
    FakeWorker worker(run, {.holds_evaluations = true});
    WaitFor([&] { return worker.is_evaluating(); });
    EXPECT_EQ(*run.coordinator->RequestStop("test"), 0);
    worker.ReleaseEvaluations();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.reports.evaluations().empty());
    snapshot = run.checkpointer->snapshots().at(0);
  }
  TestRun resumed(config, {.resume = &snapshot});
  FakeWorker worker(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  ExpectSame(resumed.reports.evaluations(), want);
}

TEST(CoordinatorEvaluationTest, VnodesOfAWorkerThatIsLostInAnEvaluationGoToOthersInTheSameRound) {
  const std::vector<EvaluationReport> want = ReferenceEvaluations(EvaluatedRun());
  TestRun run(EvaluatedRun(), {.expected_workers = 2});
  FakeWorker first(run, {.holds_evaluations = true}), second(run);
  WaitFor([&] { return first.is_evaluating(); });
  first.Kill();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ExpectSame(run.reports.evaluations(), want);
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 2);
  EXPECT_TRUE(run.Result(4) == Reference(SmallRun()));
}

TEST(CoordinatorEvaluationTest, WhoIsAboutToLeaveFinishesTheRoundWhereNobodyElseIsLeft) {
  const std::vector<EvaluationReport> want = ReferenceEvaluations(EvaluatedRun());
  TestRun run(EvaluatedRun(), {.expected_workers = 2});
  FakeWorker leaving(run);
  {
    FakeWorker other(run, {.holds_evaluations = true});
    WaitFor([&] { return other.is_evaluating(); });
    ASSERT_OK(run.coordinator->Leave(leaving.id()));
    absl::SleepFor(absl::Milliseconds(120));
    EXPECT_FALSE(leaving.finished_ok()) << "the other has not finished";
    other.Kill();
  }
  WaitFor([&] { return leaving.finished_ok(); });
  FakeWorker third(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ExpectSame(run.reports.evaluations(), want);
  EXPECT_EQ(run.coordinator->Status().counts.workers_lost, 1);
}

TEST(CoordinatorEvaluationTest, AnEvaluationWaitsForWorkersWhenAllAreLostAfterTheLastStepToo) {
  RunConfig config = EvaluatedRun();
  for (const int64_t every_steps : {3, 4}) {
    config.evaluation.every_steps = every_steps;
    TestRun run(config);
    {
      FakeWorker first(run, {.holds_evaluations = true});
      WaitFor([&] { return first.is_evaluating(); });
      EXPECT_EQ(run.committed(), every_steps);
      first.Kill();
      WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
      EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers) << every_steps;
    }
    FakeWorker second(run);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    ExpectSame(run.reports.evaluations(), ReferenceEvaluations(config));
  }
}

TEST(CoordinatorEvaluationTest, AStopEndsAnEvaluationAfterItsRoundAndTheResumedRunMakesItAnew) {
  const std::vector<EvaluationReport> want = ReferenceEvaluations(EvaluatedRun());
  Snapshot snapshot;
  {
    TestRun run(EvaluatedRun());
    FakeWorker worker(run, {.holds_evaluations = true});
    WaitFor([&] { return worker.is_evaluating(); });
    EXPECT_EQ(*run.coordinator->RequestStop("test"), 3);
    EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFinishing);
    worker.ReleaseEvaluations();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(worker.finished_ok());
    EXPECT_EQ(run.committed(), 3);
    EXPECT_TRUE(run.reports.evaluations().empty());
    snapshot = run.checkpointer->snapshots().at(3);
  }
  TestRun resumed(EvaluatedRun(), {.resume = &snapshot});
  FakeWorker worker(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  ExpectSame(resumed.reports.evaluations(), want);
  EXPECT_EQ(resumed.reports.steps_before(), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(resumed.Result(4) == Reference(SmallRun()));
  // A run that is done makes none anew.
  snapshot = resumed.checkpointer->snapshots().at(4);
  TestRun done(EvaluatedRun(), {.resume = &snapshot});
  ASSERT_OK(done.coordinator->WaitUntilFinished());
  EXPECT_TRUE(done.reports.evaluations().empty());
}

TEST(CoordinatorEvaluationTest, AStopInAnEvaluationWithNobodyLeftEndsTheRunAtOnce) {
  TestRun run(EvaluatedRun());
  FakeWorker worker(run, {.holds_evaluations = true});
  WaitFor([&] { return worker.is_evaluating(); });
  worker.Kill();
  WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
  EXPECT_EQ(*run.coordinator->RequestStop("test"), 3);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.checkpointer->snapshots().count(3), 1u);
}

TEST(CoordinatorEvaluationTest, ACheckpointThatIsAskedForInAnEvaluationIsOfItsVersion) {
  TestRun run(EvaluatedRun());
  FakeWorker worker(run, {.holds_evaluations = true});
  WaitFor([&] { return worker.is_evaluating(); });
  std::atomic<bool> answered = false;
  run.coordinator->RequestCheckpoint([&](absl::StatusOr<std::string> path) {
    EXPECT_EQ(*path, "step-3");
    answered = true;
  });
  WaitFor([&] { return answered.load(); });
  EXPECT_TRUE(worker.is_evaluating());
  worker.ReleaseEvaluations();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.reports.evaluations().size(), 2u);
}

TEST(CoordinatorEvaluationTest, EvaluationDataThatCannotBeReadEndsTheRunWithACheckpointOfAllThatWasDone) {
  TestRun run(EvaluatedRun());
  ASSERT_EQ(truncate(run.config.evaluation.path.c_str(), 0), 0);
  FakeWorker worker(run);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kDataLoss, "evaluation: round 0"));
  EXPECT_EQ(run.checkpointer->snapshots().count(3), 1u);
}

TEST(CoordinatorEvaluationTest, OneThatGoesOnShowsHowFarItIsAndIsNoEndAfterTheLastStepEither) {
  for (const int64_t every_steps : {3, 4}) {
    RunConfig config = EvaluatedRun();
    config.evaluation.every_steps = every_steps;
    TestRun run(config);
    EXPECT_FALSE(run.coordinator->Status().evaluating.has_value());
    FakeWorker worker(run, {.holds_evaluations = true});
    WaitFor([&] { return worker.is_evaluating(); });
    const RunStatus status = run.coordinator->Status();
    ASSERT_TRUE(status.evaluating.has_value());
    EXPECT_EQ(status.evaluating->version, Version(every_steps));
    EXPECT_EQ(status.evaluating->share, 0);
    EXPECT_GE(status.evaluating->seconds, 0);
    EXPECT_EQ(status.phase, RunPhase::kTraining) << every_steps;
    EXPECT_GT(status.eta_seconds, 0);
    worker.ReleaseEvaluations();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_FALSE(run.coordinator->Status().evaluating.has_value());
    EXPECT_EQ(run.coordinator->Status().eta_seconds, 0);
    double seconds = 0;
    for (const EvaluationReport& report : run.reports.evaluations()) seconds += report.seconds;
    EXPECT_EQ(run.coordinator->Status().counts.evaluation_seconds, seconds);
  }
}

TEST(CoordinatorEvaluationTest, TheNewestEvaluationIsPartOfTheStatus) {
  TestRun run(EvaluatedRun());
  EXPECT_FALSE(run.coordinator->Status().evaluation.has_value());
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ASSERT_TRUE(run.coordinator->Status().evaluation.has_value());
  EXPECT_EQ(run.coordinator->Status().evaluation->version, Version(4));
}

INSTANTIATE_TEST_SUITE_P(Modes, CoordinatorModeTest, AllModes());

}  // namespace
}  // namespace eps::server
