// The coordinator's checkpoints, and the ends of runs.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/coordinator_test_run.h"
#include "eps_server/step/coordinator_test_worker.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST_P(CoordinatorModeTest, CheckpointIsItsVersionThoughTrainingGoesOnAndResumeContinuesExactly) {
  RunConfig config = Config();
  config.steps = 6;
  const std::string want = Reference(config);
  config.checkpoint.every_steps = 2;
  std::map<int64_t, Snapshot> snapshots;
  {
    TestRun run(config);
    // The capture stops before its third blob: the step under way cannot commit, since that blob
    // may not be updated.
    run.checkpointer->StopAt(2);
    FakeWorker worker(run);
    WaitFor([&] { return run.checkpointer->stopped(); });
    // Who writes is told to hurry once an update waits, which is then all that the step waits for.
    WaitFor([&] { return run.checkpointer->is_awaited(); });
    EXPECT_EQ(run.committed(), 2);
    run.checkpointer->Pass();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(6) == want);
    const std::vector<StepReport> reports = run.reports.all();
    EXPECT_EQ(reports[1].held_seconds, 0);
    EXPECT_GT(reports[2].held_seconds, 0);
    EXPECT_GE(run.coordinator->Status().counts.update_held_seconds, reports[2].held_seconds);
    snapshots = run.checkpointer->snapshots();
  }
  ASSERT_EQ(snapshots.size(), 3u);
  for (const auto& [version, snapshot] : snapshots) {
    EXPECT_EQ(snapshot.state.version, Version(version));
    EXPECT_EQ(snapshot.state.losses.size(), static_cast<size_t>(version));
    EXPECT_EQ(snapshot.state.gradient_norms.size(), static_cast<size_t>(version));
    EXPECT_EQ(snapshot.state.tokens, version * config.tokens_per_step());
    TestRun resumed(config, {.resume = &snapshot});
    if (version == 6) {
      EXPECT_OK(resumed.coordinator->WaitUntilFinished());
      continue;
    }
    FakeWorker worker(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
    EXPECT_TRUE(resumed.Result(6) == want) << version;
  }
}

TEST(CoordinatorCheckpointTest, StopEndsAfterTheStepInProgressWithItsCheckpoint) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 2; });
  ASSERT_OK_AND_ASSIGN(const int64_t last, run.coordinator->RequestStop("test"));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.committed(), last);
  EXPECT_EQ(run.checkpointer->snapshots().count(last), 1u);
  EXPECT_TRUE(worker.finished_ok() && !worker.run_may_go_on());
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFinishing);  // its work is not done
  // Constant schedule: the same as a run of that length.
  config.steps = last;
  EXPECT_TRUE(run.Result(last) == Reference(config));
  EXPECT_EQ(*run.coordinator->RequestStop("again"), last);
}

// Also who comes after they were told.
TEST(CoordinatorCheckpointTest, WorkersHearThatARunThatASignalStoppedMayGoOn) {
  for (const bool is_done : {false, true}) {
    RunConfig config = SmallRun();
    if (!is_done) config.steps = 1000000;
    TestRun run(config);
    FakeWorker worker(run);
    run.coordinator->ExpectReturn();
    if (!is_done) {
      WaitFor([&] { return run.committed() >= 2; });
      ASSERT_OK(run.coordinator->RequestStop("SIGTERM"));
    }
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(worker.finished_ok());
    EXPECT_EQ(worker.run_may_go_on(), !is_done);
    EXPECT_EQ(run.coordinator->Connect(worker.id(), nullptr).code(),
              is_done ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable);
  }
}

TEST(CoordinatorCheckpointTest, WithoutALastCheckpointTheRunEndsWithTheSameBitsAndLeavesNone) {
  RunConfig config = SmallRun();
  config.checkpoint.last = false;
  TestRun run(config);
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.committed(), config.steps);
  EXPECT_TRUE(worker.finished_ok());
  EXPECT_TRUE(run.checkpointer->snapshots().empty());
  EXPECT_EQ(run.coordinator->Status().newest_checkpoint, "");
  EXPECT_TRUE(run.Result(config.steps) == Reference(config));
}

TEST(CoordinatorCheckpointTest, ARunThatEndsBeforeItsLastStepHasTheStepsOfTheWholeRun) {
  RunConfig config = SmallRun();
  config.optimizer.decay = ScheduleDecay::kLinear;
  TestRun whole(config), part(config, {.most_steps = 2});
  FakeWorker worker_of_whole(whole), worker_of_part(part);
  ASSERT_OK(whole.coordinator->WaitUntilFinished());
  ASSERT_OK(part.coordinator->WaitUntilFinished());
  EXPECT_TRUE(worker_of_part.finished_ok());
  EXPECT_EQ(part.committed(), 2);
  ASSERT_EQ(part.reports.all().size(), 2u);
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(part.reports.all()[s].learning_rate, whole.reports.all()[s].learning_rate);
    EXPECT_EQ(part.reports.all()[s].gradient_norm, whole.reports.all()[s].gradient_norm);
  }
}

TEST(CoordinatorCheckpointTest, WithoutALastCheckpointTheEndWaitsForTheOneThatIsBeingWritten) {
  RunConfig config = SmallRun();
  config.checkpoint = {.every_steps = 3, .last = false};
  TestRun run(config);
  run.checkpointer->StopAt(run.model.blobs.size());  // all are captured: no update waits
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() == config.steps && run.checkpointer->stopped(); });
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFinishing);
  run.checkpointer->Pass();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().newest_checkpoint, "step-3");
  EXPECT_EQ(run.checkpointer->snapshots().size(), 1u);
}

TEST(CoordinatorCheckpointTest, AStoppedRunLeavesACheckpointWhateverItsLastStepWould) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  config.checkpoint.last = false;
  TestRun run(config);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 2; });
  ASSERT_OK_AND_ASSIGN(const int64_t last, run.coordinator->RequestStop("test"));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.checkpointer->snapshots().count(last), 1u);
}

TEST(CoordinatorCheckpointTest, AStepThatWaitsForTheCopyOfACheckpointSaysSo) {
  RunConfig config = SmallRun(ClipMode::kNone);
  config.checkpoint.every_steps = 1;
  FakeClock clock;
  TestRun run(config, {.window_bytes = 1, .clock = &clock});
  run.checkpointer->StopAt(0);
  FakeWorker worker(run);
  WaitFor([&] { return run.checkpointer->stopped() && run.coordinator->Status().waiting_offers > 0; });
  WaitFor([&] {
    ++clock.seconds;
    EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
    absl::SleepFor(absl::Milliseconds(20));  // looks between two heartbeats
    return run.coordinator->Status().step_wait.has_value();
  });
  const StepWait wait = *run.coordinator->Status().step_wait;
  EXPECT_EQ(wait.cause, "checkpoint");
  EXPECT_FALSE(wait.blobs.empty());
  run.checkpointer->Pass();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
}

TEST(CoordinatorCheckpointTest, ARunThatNeedNotEndWithOneEndsWellWhereItCannotBeWritten) {
  RunConfig config = SmallRun(ClipMode::kNone);
  config.checkpoint.last = false;
  config.checkpoint.every_steps = config.steps;
  TestRun run(config);
  run.checkpointer->FailWith(absl::UnavailableError("the disk is full"));
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.committed(), config.steps);
}

TEST(CoordinatorCheckpointTest, StopWithoutAnybodyToFinishAStepThatHasUpdatedWeightsFails) {
  TestRun run(SmallRun(ClipMode::kNone));
  FakeWorker worker(run, {.holds_records = true});  // all its contributions come, and so do the updates
  // As late as can be: of the step nothing is left to be updated.
  WaitFor([&] { return run.coordinator->Status().counts.updated_elems == run.model.num_elems(); });
  worker.Kill();
  WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
  EXPECT_THAT(run.coordinator->RequestStop("test"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "no worker is left to finish step 0"));
  EXPECT_THAT(run.coordinator->WaitUntilFinished(),
              StatusIs(absl::StatusCode::kUnavailable, "no worker is left to finish step 0"));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFailed);
}

TEST(CoordinatorCheckpointTest, StopWithoutAnybodyEndsBeforeAStepInWhichNothingWasUpdated) {
  RunConfig config = SmallRun(ClipMode::kExact);
  const std::string want = Reference(config);
  Snapshot snapshot;
  int64_t committed = 0;
  {
    TestRun run(config);
    FakeWorker worker(run, 20);  // dies in the third step, while the second may not be committed yet
    WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
    WaitFor([&] { return run.committed() == 2; });
    committed = run.committed();
    ASSERT_LT(committed, config.steps);
    EXPECT_EQ(*run.coordinator->RequestStop("test"), committed);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_EQ(run.committed(), committed);
    snapshot = run.checkpointer->snapshots().at(committed);
  }
  TestRun resumed(config, {.resume = &snapshot});
  FakeWorker worker(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  EXPECT_TRUE(resumed.Result(config.steps) == want);
}

TEST(CoordinatorCheckpointTest, WhoeverIsLostBeforeTheLastStepIsFinishedLeavesTheOneBeforeAndAFailure) {
  TestRun run(SmallRun(ClipMode::kExact));
  FakeWorker worker(run, {.hangs = true});
  WaitFor([&] { return !run.coordinator->Status().workers.at(0).vnodes.empty(); });
  EXPECT_EQ(*run.coordinator->RequestStop("test"), 1);
  worker.Kill();
  EXPECT_THAT(run.coordinator->WaitUntilFinished(),
              StatusIs(absl::StatusCode::kUnavailable, "stopped, and no worker is left to finish step 0"));
  EXPECT_EQ(run.committed(), 0);
  EXPECT_EQ(run.checkpointer->snapshots().count(0), 1u);
}

TEST(CoordinatorCheckpointTest, DataThatCannotBeReadAnyMoreEndsTheRunWithACheckpointOfAllThatWasDone) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 2; });
  ASSERT_EQ(truncate(run.config.data.path.c_str(), 0), 0);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kDataLoss, "text\" ends at byte"));
  EXPECT_FALSE(worker.finished_ok());
  const int64_t last = run.committed();
  EXPECT_EQ(run.checkpointer->snapshots().count(last), 1u);
  config.steps = last;
  EXPECT_TRUE(run.Result(last) == Reference(config));
}

TEST(CoordinatorCheckpointTest, ARunThatHasDivergedDoesOneStepMoreWhenItIsResumedAndGoesOnIfThatIsFinite) {
  RunConfig config = SmallRun(ClipMode::kExact);
  config.steps = 50;
  config.checkpoint.every_steps = 1;
  const auto diverges = [](TestRun& run, const std::string& why) {
    FakeWorker worker(run, {.breaks_gradients = true});
    EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kOutOfRange, why));
  };
  std::map<int64_t, Snapshot> snapshots;
  {
    TestRun run(config);
    diverges(run, "step 19: the gradient of the last 20 steps was not finite");
    WaitFor([&] { return run.checkpointer->snapshots().contains(20); });
    snapshots = run.checkpointer->snapshots();
  }
  {
    TestRun resumed(config, {.resume = &snapshots.at(15)});
    diverges(resumed, "step 19: the gradient of the last 20 steps was not finite");
  }
  TestRun resumed(config, {.resume = &snapshots.at(20)});
  diverges(resumed, "step 20: the gradient of the last 21 steps was not finite");
  TestRun comes_back(config, {.resume = &snapshots.at(20)});
  FakeWorker worker(comes_back);
  ASSERT_OK(comes_back.coordinator->WaitUntilFinished());
  EXPECT_EQ(comes_back.coordinator->Status().skipped_steps, 20);
}

TEST(CoordinatorCheckpointTest, DataThatCannotBeReadIsTheReasonThoughTheLastCheckpointFailsToo) {
  TestRun run(SmallRun());
  run.checkpointer->FailWith(absl::UnavailableError("the disk is gone"));
  ASSERT_EQ(truncate(run.config.data.path.c_str(), 0), 0);
  FakeWorker worker(run);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kDataLoss, "text\" ends at byte"));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFailed);
}

TEST(CoordinatorCheckpointTest, StopBeforeAnyStepLeavesACheckpointOfTheStart) {
  TestRun run(SmallRun());
  EXPECT_EQ(*run.coordinator->RequestStop("test"), 0);
  EXPECT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.checkpointer->snapshots().count(0), 1u);
}

TEST(CoordinatorCheckpointTest, CheckpointsOnRequest) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  const auto request = [&] {
    auto path = std::make_shared<std::string>();
    auto done = std::make_shared<std::atomic<bool>>(false);
    run.coordinator->RequestCheckpoint([path, done](absl::StatusOr<std::string> got) {
      EXPECT_OK(got);
      *path = *got;
      *done = true;
    });
    WaitFor([&] { return done->load(); });
    return *path;
  };
  EXPECT_EQ(request(), "step-0");  // nothing is in progress
  EXPECT_EQ(request(), "step-0");  // no second write
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 1; });
  const std::string path = request();
  EXPECT_NE(path, "step-0");
  EXPECT_EQ(path, run.coordinator->Status().newest_checkpoint);
  ASSERT_OK(run.coordinator->RequestStop("test"));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(request(), run.coordinator->Status().newest_checkpoint);
}

TEST(CoordinatorCheckpointTest, WhoWritesIsToldToHurryForTheEndOfTheRun) {
  TestRun run(SmallRun());
  run.checkpointer->StopAt(0);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() == 4 && run.checkpointer->stopped(); });
  EXPECT_TRUE(run.checkpointer->is_awaited());
  run.checkpointer->Pass();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
}

TEST(CoordinatorCheckpointTest, WhoWritesIsToldToHurryForWhoAsked) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  run.checkpointer->StopAt(0);
  std::atomic<bool> answered = false;
  run.coordinator->RequestCheckpoint([&](const absl::StatusOr<std::string>&) { answered = true; });
  WaitFor([&] { return run.checkpointer->stopped(); });
  EXPECT_TRUE(run.checkpointer->is_awaited());
  run.checkpointer->Pass();
  WaitFor([&] { return answered.load(); });
}

TEST(CoordinatorCheckpointTest, TheEndOfAFailedRunCancelsTheCheckpointThatIsBeingWritten) {
  TestRun run(SmallRun());
  run.checkpointer->StopAt(1);  // for good
  FakeWorker worker(run);
  WaitFor([&] { return run.checkpointer->stopped(); });
  run.coordinator->Fail(absl::AbortedError("a second signal"));
  EXPECT_EQ(run.coordinator->WaitUntilFinished().code(), absl::StatusCode::kAborted);
  run.coordinator.reset();
  EXPECT_TRUE(run.checkpointer->snapshots().empty());
}

TEST(CoordinatorCheckpointTest, FailedCheckpointInMidRunIsSurvivedTheLastOneIsNot) {
  RunConfig config = SmallRun();
  config.checkpoint.every_steps = 1;
  TestRun run(config);
  run.checkpointer->FailWith(absl::ResourceExhaustedError("disk full"));
  FakeWorker worker(run);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(),
              StatusIs(absl::StatusCode::kResourceExhausted, "the last checkpoint: disk full"));
  EXPECT_EQ(run.committed(), 4);
  EXPECT_FALSE(worker.finished_ok());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.checkpoint_failures, 4);
  EXPECT_EQ(status.checkpoints_written, 0);
  EXPECT_EQ(status.checkpoint_error, "disk full");
}

TEST(CoordinatorCheckpointTest, AfterAFailedCheckpointTheNextOneIsWrittenAndTheRunEndsWell) {
  RunConfig config = SmallRun();
  config.checkpoint.every_steps = 1;
  TestRun run(config);
  run.checkpointer->FailOnceWith(absl::ResourceExhaustedError("disk full"));
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.checkpoint_failures, 1);
  EXPECT_EQ(status.checkpoints_written, 3);
  EXPECT_EQ(status.checkpoint_error, "");
  EXPECT_EQ(status.newest_checkpoint, "step-4");
}

INSTANTIATE_TEST_SUITE_P(Modes, CoordinatorModeTest, AllModes());

}  // namespace
}  // namespace eps::server
