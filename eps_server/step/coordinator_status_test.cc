// What Coordinator::Status says of a run.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/model/model_flops.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/coordinator_test_run.h"
#include "eps_server/step/coordinator_test_worker.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(CoordinatorStatusTest, AStepThatWaitsTooLongIsCounted) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  FakeWorker first(run, {.holds_records = true});
  FakeWorker second(run);
  WaitFor([&] { return run.coordinator->Status().counts.passes == 1; });  // the second one's
  EXPECT_EQ(run.coordinator->Status().counts.step_waits, 0);
  for (; clock.seconds < 65; clock.seconds += 5) {
    EXPECT_OK(run.coordinator->Heartbeat(first.id()));
    EXPECT_OK(run.coordinator->Heartbeat(second.id()));
  }
  WaitFor([&] { return run.coordinator->Status().counts.step_waits == 1; });
  // All gradients come, and all is updated; what the first layer has waits behind the gate.
  WaitFor([&] { return run.coordinator->Status().blobs_updated == std::vector<bool>{false, false, true, true, true}; });
  // Whose next gradients are missing is furthest behind; once all are there, who has not said that its pass is done.
  const std::vector<int> vnodes = run.coordinator->Status().workers[0].vnodes;
  WaitFor([&] {
    const std::optional<StepWait> wait = run.coordinator->Status().step_wait;
    return wait.has_value() && wait->vnodes == std::map<WorkerId, std::vector<int>>{{first.id(), vnodes}};
  });
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.step_age_seconds, 65);
  EXPECT_EQ(status.step_wait->cause, "compute");
  EXPECT_EQ(status.step_wait->seconds, 65);
  EXPECT_EQ(vnodes.size(), 2u);
  EXPECT_EQ(status.workers[0].silent_for, absl::Seconds(5));
  first.ReleaseRecords();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().counts.step_waits, 1);
  EXPECT_FALSE(run.coordinator->Status().step_wait.has_value());
}

TEST(CoordinatorStatusTest, CountsWhatHappened) {
  TestRun run(SmallRun(), {.expected_workers = 2});
  FakeWorker first(run, 5), second(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.counts.workers_attached, 2);
  EXPECT_EQ(status.counts.workers_lost, 1);
  EXPECT_GT(status.counts.vnodes_redone, 0);
  EXPECT_GT(status.counts.passes, 0);
  EXPECT_EQ(status.counts.versions_published, 4 * static_cast<int64_t>(run.model.blobs.size()));
  int64_t num_elems = 0;
  for (const BlobSpec& blob : run.model.blobs) num_elems += blob.num_elems;
  EXPECT_EQ(status.counts.updated_elems, 4 * num_elems);
  EXPECT_GT(status.counts.update_moved_bytes, 0);
  EXPECT_GT(status.counts.update_busy_seconds, 0);
  EXPECT_EQ(status.blobs_updated, std::vector<bool>(run.model.blobs.size(), true));
  const BatchConfig batch = SmallRun().batch;
  EXPECT_EQ(status.counts.model_flops,
            4 * ModelFlops(run.model).Of({.tokens = batch.sequences_per_step() * run.model.config.context,
                                          .samples = batch.sequences_per_step()}));
  EXPECT_EQ(status.checkpoint_step, 4);
  EXPECT_EQ(status.checkpoints_written, 1);
  EXPECT_EQ(status.loss_curve.size(), 4u);
}

TEST(CoordinatorStatusTest, WaitsForTheExpectedWorkersOrItsPatience) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  clock.seconds = 20;
  EXPECT_EQ(run.coordinator->Status().workers_expected, 2);
  EXPECT_EQ(run.coordinator->Status().start_in_seconds, -1) << "nobody is there to begin with";
  FakeWorker worker(run);
  absl::SleepFor(absl::Milliseconds(80));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  EXPECT_EQ(run.coordinator->Status().start_in_seconds, 40);
  for (; clock.seconds < 60; clock.seconds += 5) EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().workers_expected, 0);
  EXPECT_EQ(run.coordinator->Status().start_in_seconds, -1);
}

TEST(CoordinatorStatusTest, WhoGoesAsTheRunEndsHasLeftAndWhoWasKilledBeforeIsLost) {
  TestRun run(SmallRun(), {.expected_workers = 2});
  FakeWorker killed(run, 5), first(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  run.coordinator->Disconnect(first.id(), absl::UnavailableError("its stream was cut"));
  const RunStatus status = run.coordinator->Status();
  ASSERT_EQ(status.workers.size(), 2u);
  EXPECT_EQ(status.workers[0].state, WorkerState::kLost);
  EXPECT_EQ(status.workers[1].state, WorkerState::kLeft);
  EXPECT_EQ(status.counts.workers_lost, 1);
}

TEST(CoordinatorStatusTest, AWorkerThatGoesByItselfHasLeft) {
  TestRun run(SmallRun(), {.expected_workers = 2});
  const WorkerId worker =
      *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1});
  run.coordinator->Disconnect(worker, absl::OkStatus());
  ASSERT_EQ(run.coordinator->Status().workers.size(), 1u);
  EXPECT_EQ(run.coordinator->Status().workers[0].state, WorkerState::kLeft);
}

TEST(CoordinatorStatusTest, WhatALostWorkerLeavesIsRedoneOnceAnotherHasComputedIt) {
  TestRun run(SmallRun());
  {
    FakeWorker worker(run, {.holds_records = true});
    WaitFor([&] { return run.coordinator->Status().workers[0].state == WorkerState::kRunning; });
    worker.Kill();
    WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
  }
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 0) << "nobody is there to do it";
  FakeWorker other(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 4);
}

TEST(CoordinatorStatusTest, ARunThatHasFailedLosesNobodyAndHasNoTimeLeft) {
  TestRun run(SmallRun(ClipMode::kNone), {.expected_workers = 2});
  FakeWorker hangs(run, {.hangs = true}), breaks(run, {.breaks_loss = true});
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kOutOfRange, "the loss of vnode"));
  hangs.Kill();
  for (const WorkerId worker : {breaks.id(), hangs.id()}) {
    run.coordinator->Disconnect(worker, absl::FailedPreconditionError("the run has failed"));
  }
  const RunStatus status = run.coordinator->Status();
  ASSERT_EQ(status.workers.size(), 2u);
  for (const WorkerStatus& worker : status.workers) EXPECT_EQ(worker.state, WorkerState::kLeft);
  EXPECT_EQ(status.phase, RunPhase::kFailed);
  EXPECT_EQ(status.counts.workers_lost, 0);
  EXPECT_EQ(status.counts.vnodes_redone, 0);
  EXPECT_EQ(status.eta_seconds, -1);
}

TEST(CoordinatorStatusTest, AFailureInTheMidstOfARunLeavesNoTimeToGo) {
  TestRun run(SmallRun());
  FakeWorker worker(run, 20);
  WaitFor([&] { return run.committed() >= 1; });
  EXPECT_GE(run.coordinator->Status().learning_rate, 0);
  run.coordinator->Fail(absl::DataLossError("the disk"));
  EXPECT_FALSE(run.coordinator->WaitUntilFinished().ok());
  EXPECT_EQ(run.coordinator->Status().eta_seconds, -1);
}

TEST(CoordinatorStatusTest, GradientsThatAreInShowWhileAllUpdatesWaitForTheNorm) {
  for (const ClipMode clip : {ClipMode::kExact, ClipMode::kNone}) {
    TestRun run(SmallRun(clip));
    EXPECT_EQ(run.coordinator->Status().updates_wait_for_norm, clip == ClipMode::kExact);
    EXPECT_EQ(run.coordinator->Status().blobs_summed, 0);
    EXPECT_EQ(run.coordinator->Status().learning_rate, -1) << "no step has one yet";
    const auto blobs = static_cast<int64_t>(run.model.blobs.size());
    FakeWorker worker(run, {.holds_records = true});
    WaitFor([&] { return run.coordinator->Status().blobs_summed == blobs; });
    EXPECT_EQ(run.committed(), 0);
    worker.ReleaseRecords();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
  }
}

}  // namespace
}  // namespace eps::server
