#include "eps_server/step/coordinator.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/data/step_data.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/coordinator_test_run.h"
#include "eps_server/step/coordinator_test_worker.h"
#include "eps_server/step/vnode_balancer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST_P(CoordinatorModeTest, SameBitsForAnyNumberOfWorkersThreadsAndWindow) {
  const std::string want = Reference(Config());
  for (const int workers : {2, 3, 5}) {
    for (const int64_t window_bytes : {0, 1}) {
      TestRun run(Config(), {.expected_workers = workers, .threads = workers, .window_bytes = window_bytes});
      std::vector<std::unique_ptr<FakeWorker>> fleet;
      for (int i = 0; i < workers; ++i) fleet.push_back(std::make_unique<FakeWorker>(run));
      ASSERT_OK(run.coordinator->WaitUntilFinished());
      EXPECT_TRUE(run.Result(4) == want) << workers;
      for (const auto& worker : fleet) EXPECT_TRUE(worker->finished_ok() && !worker->run_may_go_on());
    }
  }
}

TEST_P(CoordinatorModeTest, SameBitsWhenAWorkerDiesAtAnyPoint) {
  const std::string want = Reference(Config());
  // A worker with two of four vnodes sends 17 messages per step: 16 chunks, and its records among
  // or behind them. Every point of two steps in one mode; some in the others, to keep the test
  // short.
  const int stride = GetParam().clip == ClipMode::kExact ? 1 : 5;
  for (int dies_at = 0; dies_at <= 36; dies_at += stride) {
    TestRun run(Config(), {.expected_workers = 2});
    FakeWorker first(run, dies_at % 2 == 0 ? dies_at : kNever), second(run, dies_at % 2 == 0 ? kNever : dies_at);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    ASSERT_TRUE(run.Result(4) == want) << dies_at;
    EXPECT_TRUE(first.dead() || second.dead());
  }
}

// Modes in which nobody is lost.
TEST(CoordinatorTest, OneWireBufferChangesNoBit) {
  for (const ClipMode clip : {ClipMode::kNone, ClipMode::kLagged, ClipMode::kPerBlob, ClipMode::kExact}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
      RunConfig config = SmallRun(clip, dtype);
      const std::string want = Reference(config);
      config.precision.wire_versions = 1;
      for (const int workers : {1, 3}) {
        TestRun run(config, {.expected_workers = workers});
        std::vector<std::unique_ptr<FakeWorker>> fleet;
        for (int i = 0; i < workers; ++i) fleet.push_back(std::make_unique<FakeWorker>(run));
        ASSERT_OK(run.coordinator->WaitUntilFinished());
        EXPECT_TRUE(run.Result(4) == want) << static_cast<int>(clip) << " " << DtypeName(dtype) << " " << workers;
      }
    }
  }
}

TEST(CoordinatorTest, WithOneWireBufferAndEagerUpdatesALossCostsTheStepAndNothingElse) {
  RunConfig config = SmallRun(ClipMode::kNone, Dtype::kBf16);
  const std::string want = Reference(config);
  config.precision.wire_versions = 1;
  int lost = 0;
  for (int dies_at = 0; dies_at <= 36; dies_at += 3) {
    TestRun run(config, {.expected_workers = 2});
    FakeWorker first(run, dies_at), second(run);
    const absl::Status ended = run.coordinator->WaitUntilFinished();
    if (ended.ok()) {  // it owed nothing
      EXPECT_TRUE(run.Result(4) == want) << dies_at;
      continue;
    }
    ++lost;
    EXPECT_THAT(ended, StatusIs(absl::StatusCode::kAborted, "precision.wire_versions is 1")) << dies_at;
  }
  EXPECT_GE(lost, 6) << "of 13: a worker that dies before the 17 messages of one of its first two steps are out";
}

// One layer wholly frozen, the first one of the relay among them, or blobs of both kinds in every layer.
std::vector<std::vector<std::string>> Freezes() {
  return {{"transformer.w*", "transformer.h.0.*"}, {"*.weight", "!transformer.wte.weight"}, {"*", "!*.ln_f.*"}};
}

TEST_P(CoordinatorModeTest, FrozenBlobsAreNobodysToPushAndEveryStepHasThemAsTheyWere) {
  for (const std::vector<std::string>& freeze : Freezes()) {
    RunConfig config = Config();
    config.model.freeze = freeze;
    config.checkpoint.every_steps = 2;
    std::string want;
    std::map<int64_t, Snapshot> snapshots;
    {
      TestRun run(config);
      std::map<BlobId, std::string> wire;
      for (const BlobSpec& blob : run.model.blobs) {
        const absl::Span<const std::byte> bytes = run.store->Wire(blob.id, Version(0));
        if (blob.frozen) wire[blob.id].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      FakeWorker worker(run);
      ASSERT_OK(run.coordinator->WaitUntilFinished());
      EXPECT_EQ(run.coordinator->Losses().size(), 4u);
      for (const BlobSpec& blob : run.model.blobs) EXPECT_EQ(run.store->published(blob.id), Version(4)) << blob.name;
      for (const auto& [blob, was] : wire) {
        const absl::Span<const std::byte> bytes = run.store->Wire(blob, Version(4));
        EXPECT_TRUE(was == absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      }
      want = run.Result(4);
      snapshots = run.checkpointer->snapshots();
    }
    for (const int dies_at : {0, 1, 5, 9}) {
      TestRun run(config, {.expected_workers = 2});
      FakeWorker first(run, dies_at), second(run);
      ASSERT_OK(run.coordinator->WaitUntilFinished());
      EXPECT_TRUE(run.Result(4) == want) << freeze[0] << ", dies at " << dies_at;
    }
    TestRun resumed(config, {.resume = &snapshots.at(2)});
    FakeWorker worker(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
    EXPECT_TRUE(resumed.Result(4) == want) << freeze[0];
  }
}

TEST_P(CoordinatorModeTest, WhatStepsDropAdvancesWithThemThroughLossesCheckpointsAndResumes) {
  RunConfig config = Config();
  config.model.num_layers = 3;
  config.model.init_seed = 4;
  config.layer_drop.share = 0.6;
  config.steps = 6;
  const ModelSpec model = *BuildModel(config.model);
  size_t dropped = 0;
  for (int step = 0; step < 6; ++step) dropped += LayerDrop(model, config.layer_drop).DroppedIn(StepId(step)).size();
  ASSERT_GT(dropped, 5u);
  const std::string want = Reference(config);
  config.checkpoint.every_steps = 2;
  std::map<int64_t, Snapshot> snapshots;
  for (const int stop_at : {-1, 0, 2, 4}) {  // the capture stops before a blob, and the steps wait for it
    TestRun run(config);
    if (stop_at >= 0) run.checkpointer->StopAt(static_cast<size_t>(stop_at));
    FakeWorker worker(run);
    if (stop_at >= 0) {
      WaitFor([&] { return run.checkpointer->stopped() && run.checkpointer->is_awaited(); });
      EXPECT_EQ(run.committed(), 2);
      run.checkpointer->Pass();
    }
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(6) == want) << stop_at;
    for (const BlobSpec& blob : run.model.blobs) EXPECT_EQ(run.store->published(blob.id), Version(6)) << blob.name;
    snapshots = run.checkpointer->snapshots();
    EXPECT_FALSE(snapshots.at(2).state.updates.empty());
    EXPECT_LT(snapshots.at(6).state.updates.at("h.2"), snapshots.at(6).state.updates.at("wte"));
    TestRun resumed(config, {.resume = &snapshots.at(2)});
    FakeWorker other(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
    EXPECT_TRUE(resumed.Result(6) == want) << "resumed, " << stop_at;
  }
  for (const int dies_at : {0, 1, 5, 9, 14}) {
    TestRun run(config, {.expected_workers = 2});
    FakeWorker first(run, dies_at), second(run);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(6) == want) << "dies at " << dies_at;
  }
}

TEST(CoordinatorTest, CountsOfBlobsThatTheModelDoesNotHaveAreRefused) {
  TestRun run(SmallRun());
  Snapshot snapshot;
  {
    FakeWorker worker(run);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    snapshot = run.checkpointer->snapshots().at(4);
  }
  EXPECT_THAT(snapshot.state.updates, ::testing::IsEmpty());  // each had all
  snapshot.state.updates = {{"h.7", 3}};
  EXPECT_THAT(Coordinator::Create({.model = &run.model,
                                   .run = &run.config,
                                   .store = run.store.get(),
                                   .checkpointer = run.checkpointer.get(),
                                   .data = *StepData::Create(run.config),
                                   .resume = snapshot.state}),
              StatusIs(absl::StatusCode::kDataLoss, "updates.wte: found nothing"));
}

TEST(CoordinatorTest, TheFirstStepWaitsForTheExpectedUntilFewerAre) {
  FakeClock clock;  // never moves: no timeout helps
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  FakeWorker only(run);
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  EXPECT_THAT(run.coordinator->ExpectWorkers(0), StatusIs(absl::StatusCode::kInvalidArgument, "expected_workers"));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  ASSERT_OK(run.coordinator->ExpectWorkers(1));
  EXPECT_OK(run.coordinator->WaitUntilFinished());
}

TEST_P(CoordinatorModeTest, SameBitsWhenAllDieAndOthersCome) {
  const std::string want = Reference(Config());
  TestRun run(Config(), {.expected_workers = 2});
  {
    FakeWorker first(run, 20), second(run, 25);
    WaitFor([&] { return first.dead() && second.dead(); });
    WaitFor([&] { return run.coordinator->Status().phase == RunPhase::kWaitingForWorkers; });
    EXPECT_EQ(run.coordinator->Status().tokens_per_second, 0);
    EXPECT_EQ(run.coordinator->Status().eta_seconds, -1);
  }
  FakeWorker third(run, 7);
  WaitFor([&] { return third.dead(); });
  FakeWorker fourth(run), fifth(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == want);
}

TEST(CoordinatorTest, WorkersScaleByWhatTheStepsBeforeLeft) {
  TestRun run(SmallRun(ClipMode::kNone, Dtype::kF16));
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  std::vector<double> scales;
  std::vector<bool> skipped;
  for (const StepReport& report : run.reports.all()) {
    scales.push_back(report.loss_scale);
    skipped.push_back(report.skipped);
  }
  EXPECT_THAT(scales, ::testing::ElementsAre(0x1p23, 0x1p22, 0x1p23, 0x1p22));
  EXPECT_THAT(skipped, ::testing::ElementsAre(true, false, true, false));
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.skipped_steps, 2);
  EXPECT_EQ(status.loss_scale, 0x1p23);
  EXPECT_EQ(run.checkpointer->snapshots().at(4).state.loss_scale, LossScale{0x1p23});
}

TEST(CoordinatorTest, AFasterWorkerGetsMoreVnodesWithoutChangingABit) {
  RunConfig config = SmallRun();
  config.steps = 3 * VnodeBalancer::kWindow;
  const std::string reference = Reference(config);
  for (const VnodeShares shares : {VnodeShares::kBySpeed, VnodeShares::kEven}) {
    config.relay.vnode_shares = shares;
    FakeClock clock;
    TestRun run(config, {.expected_workers = 2, .clock = &clock, .lease = absl::Hours(1)});
    FakeWorker fast(run, /*vnode_seconds=*/1, clock), slow(run, /*vnode_seconds=*/3, clock);
    EXPECT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_EQ(run.Result(config.steps), reference);
    std::vector<size_t> of_fast, of_slow;
    for (int64_t step = 0; step < config.steps; ++step) {
      const bool is_known = shares == VnodeShares::kBySpeed && step >= VnodeBalancer::kWindow;
      of_fast.push_back(is_known ? 3 : 2);
      of_slow.push_back(is_known ? 1 : 2);
    }
    EXPECT_EQ(fast.vnode_counts(), of_fast);
    EXPECT_EQ(slow.vnode_counts(), of_slow);
    EXPECT_EQ(run.coordinator->Status().counts.share_changes, shares == VnodeShares::kBySpeed ? 1 : 0);
  }
}

TEST(CoordinatorTest, ReportsEachStepOnceAndInOrder) {
  TestRun run(SmallRun());
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const std::vector<StepReport> reports = run.reports.all();
  ASSERT_EQ(reports.size(), 4u);
  for (int64_t s = 0; s < 4; ++s) {
    const StepReport& report = reports[s];
    EXPECT_EQ(report.step, StepId(s));
    double loss = 0;
    for (int v = 0; v < 4; ++v) loss += 1.0 / static_cast<double>(3 + v + s);
    EXPECT_DOUBLE_EQ(report.loss, loss / 64);  // 4 vnodes of 2 sequences of 8 tokens
    EXPECT_EQ(report.tokens, 64);
    EXPECT_GT(report.gradient_norm, 0);
    EXPECT_EQ(report.learning_rate, 1e-2);
    EXPECT_EQ(report.wait_fraction.at("pull"), 0.25);
    EXPECT_EQ(report.device_peak_bytes, 77);
    EXPECT_EQ(report.workers, 1);
  }
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.phase, RunPhase::kFinished);
  EXPECT_EQ(status.step, 4);
  EXPECT_EQ(status.tokens, 256);
  EXPECT_EQ(run.coordinator->Losses().size(), 4u);
  EXPECT_EQ(status.newest_checkpoint, "step-4");
  EXPECT_EQ(status.eta_seconds, 0);
  EXPECT_EQ(status.wait_fraction.at("pull"), 0.25);
  EXPECT_EQ(status.learning_rate, 1e-2);
  EXPECT_GT(status.resident_bytes, 0);
  EXPECT_THAT(run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "the run is over"));
}

TEST(CoordinatorTest, FirstLayersNextVersionStaysBehindTheGate) {
  const RunConfig config = SmallRun(ClipMode::kNone);
  TestRun run(config, {.expected_workers = 2});
  FakeWorker first(run, {.holds_records = true});
  FakeWorker second(run);
  // Every contribution is in and every blob is made, but the first worker's records are missing: it may still be lost,
  // and its vnodes run again with version 0.
  const auto is_out = [&](const BlobSpec& blob) { return run.store->published(blob.id) == Version(1); };
  const auto is_first_layers = [&](const BlobSpec& blob) { return blob.uses.front() == LayerId(0); };
  const auto& blobs = run.model.blobs;
  WaitFor([&] {
    return std::all_of(blobs.begin(), blobs.end(),
                       [&](const BlobSpec& blob) { return is_first_layers(blob) || is_out(blob); }) &&
           run.coordinator->aggregator().window_used_bytes() == 0;
  });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(std::none_of(blobs.begin(), blobs.end(),
                           [&](const BlobSpec& blob) { return is_first_layers(blob) && is_out(blob); }));
  EXPECT_EQ(run.committed(), 0);
  first.ReleaseRecords();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == Reference(config));
}

// What a lost worker had sent of its part, its record or its gradients, does not end the step under whoever computes it
// again, from weights that the next version would overwrite where there is one buffer.
TEST_P(CoordinatorModeTest, TheGateWaitsForWhoComputesALostPartAgain) {
  const RunConfig config = Config();
  TestRun run(config, {.expected_workers = 2});
  FakeWorker second(run);
  {
    FakeWorker first(run, {.withholds_gradients = true});
    WaitFor([&] { return run.coordinator->Status().counts.passes == 2; });
    second.HoldRecords();
    first.Kill();
    WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
  }
  WaitFor([&] {
    const std::vector<bool> missing = run.coordinator->aggregator().MissingVnodes();
    return std::count(missing.begin(), missing.end(), true) == 0;
  });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(run.committed(), 0);
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 0) << "its records are to come";
  EXPECT_EQ(run.coordinator->Status().workers.back().state, WorkerState::kRunning);
  const BlobSpec& first_of_all = run.model.blob(run.model.layers.front().blobs.front().blob);
  EXPECT_EQ(run.store->published(first_of_all.id), Version(0));
  second.ReleaseRecords();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 2);
  EXPECT_TRUE(run.Result(config.steps) == Reference(config));
}

TEST(CoordinatorTest, VnodesWithoutARecordAreRedoneThoughTheirContributionsAreIn) {
  const RunConfig config = SmallRun(ClipMode::kNone);
  TestRun run(config, {.expected_workers = 2});
  FakeWorker first(run), second(run, 16);  // dies before its records
  WaitFor([&] { return second.dead(); });
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == Reference(config));
}

TEST(CoordinatorTest, LeaseRunsOutAndOthersDoTheWork) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  // A worker that attaches and never says anything again.
  class Silent : public WorkerChannel {
   public:
    void SendAssignment(std::shared_ptr<const Assignment> assignment) override { got = assignment->vnodes.size(); }
    void SendGroupOrder(const GroupOrder&) override {}
    void SendFinish(FinishNotice) override { ADD_FAILURE() << "it may come back"; }
    void Close(absl::Status why) override {
      EXPECT_THAT(why, StatusIs(absl::StatusCode::kDeadlineExceeded, "not heard of for 10s"));
      finished = true;
    }
    std::atomic<size_t> got = 0;
    std::atomic<bool> finished = false;
  };
  const auto silent = std::make_shared<Silent>();
  const WorkerId id = *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1});
  ASSERT_OK(run.coordinator->Connect(id, silent));
  ASSERT_OK(run.coordinator->Ready(id, {}));
  FakeWorker worker(run);
  WaitFor([&] { return silent->got == 2u; });
  clock.seconds = 6;
  EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
  absl::SleepFor(absl::Milliseconds(120));
  EXPECT_EQ(run.committed(), 0);
  EXPECT_FALSE(silent->finished);
  // A second at a time, which nobody takes for a standstill.
  while (!silent->finished) {
    ++clock.seconds;
    run.coordinator->Heartbeat(worker.id()).IgnoreError();  // or it is over
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_GE(clock.seconds, 10);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_THAT(run.coordinator->Heartbeat(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(run.Result(4) == Reference(SmallRun()));
}

TEST_P(CoordinatorModeTest, WhoAsksToLeaveFinishesItsPartAndIsGivenNoMore) {
  const RunConfig config = Config();
  TestRun run(config, {.expected_workers = 2});
  FakeWorker leaving(run, {.holds_records = true});
  FakeWorker other(run);
  WaitFor([&] { return run.coordinator->Status().counts.passes == 1; });  // the other's
  ASSERT_OK(run.coordinator->Leave(leaving.id()));
  EXPECT_EQ(run.coordinator->Status().workers.front().state, WorkerState::kLeaving);
  EXPECT_EQ(run.coordinator->Status().workers.front().vnodes.size(), 2u);
  EXPECT_FALSE(leaving.finished_ok());
  leaving.ReleaseRecords();
  WaitFor([&] { return leaving.finished_ok(); });
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.counts.vnodes_redone, 0);
  EXPECT_EQ(status.counts.workers_lost, 0);
  EXPECT_EQ(status.counts.passes, 1 + config.steps);
  EXPECT_OK(run.coordinator->Heartbeat(leaving.id())) << "until its stream ends";
  run.coordinator->Disconnect(leaving.id(), absl::UnavailableError("its stream ended"));
  EXPECT_THAT(run.coordinator->Heartbeat(leaving.id()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(run.coordinator->Status().counts.workers_lost, 0);
  EXPECT_TRUE(run.Result(config.steps) == Reference(config));
}

TEST(CoordinatorTest, WhoSaysTheSameAgainDoesNotFillTheLog) {
  TestRun run(SmallRun(), {.expected_workers = 2});
  ::testing::internal::CaptureStderr();
  FakeWorker worker(run);
  for (int i = 0; i < 100; ++i) {
    EXPECT_OK(run.coordinator->Ready(worker.id(), {}));
    EXPECT_OK(run.coordinator->Leave(worker.id()));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* event : {" worker_ready ", " worker_leaves "}) {
    EXPECT_NE(log.find(event), std::string::npos) << log;
    EXPECT_EQ(log.find(event), log.rfind(event)) << log;
  }
}

TEST_P(CoordinatorModeTest, WhoIsAboutToLeaveFinishesTheStepWhereNobodyElseIsLeft) {
  const RunConfig config = Config();
  TestRun run(config, {.expected_workers = 2});
  FakeWorker leaving(run, {.holds_records = true});
  {
    FakeWorker other(run, {.holds_records = true});
    WaitFor([&] { return run.coordinator->Status().workers.back().state == WorkerState::kRunning; });
    ASSERT_OK(run.coordinator->Leave(leaving.id()));
    leaving.ReleaseRecords();
    WaitFor([&] { return run.coordinator->Status().counts.passes == 1; });
    absl::SleepFor(absl::Milliseconds(120));
    EXPECT_FALSE(leaving.finished_ok()) << "the other has not finished";
    other.Kill();
  }
  WaitFor([&] { return leaving.finished_ok(); });
  WaitFor([&] { return run.committed() == 1; });
  FakeWorker third(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(config.steps) == Reference(config));
}

TEST_P(CoordinatorModeTest, WhoIsDrainedFinishesItsPartAndTheLastOneStays) {
  const RunConfig config = Config();
  TestRun run(config, {.expected_workers = 2});
  FakeWorker drained(run, {.holds_records = true});
  FakeWorker other(run);
  WaitFor([&] { return run.coordinator->Status().counts.passes == 1; });  // the other's
  const WorkerId both[] = {drained.id(), other.id()};
  EXPECT_THAT(run.coordinator->Drain(both), StatusIs(absl::StatusCode::kFailedPrecondition, "eps stop"));
  ASSERT_OK(run.coordinator->Drain({both, 1}));
  EXPECT_FALSE(drained.finished_ok());
  drained.ReleaseRecords();
  WaitFor([&] { return drained.finished_ok(); });
  EXPECT_OK(run.coordinator->Heartbeat(drained.id())) << "until its stream ends";
  run.coordinator->Disconnect(drained.id(), absl::UnavailableError("its stream ended"));
  EXPECT_THAT(run.coordinator->Drain({both, 1}), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 0);
  EXPECT_EQ(run.coordinator->Status().counts.workers_lost, 0);
  EXPECT_TRUE(run.Result(config.steps) == Reference(config));
}

// As where a service manager asks all processes of a run to end.
TEST(CoordinatorTest, AStopWithAllWorkersLeavingEndsAfterTheStep) {
  TestRun run(SmallRun(ClipMode::kNone), {.expected_workers = 2});
  FakeWorker first(run, {.holds_records = true});
  FakeWorker second(run, {.holds_records = true});
  WaitFor([&] { return run.coordinator->Status().workers.back().state == WorkerState::kRunning; });
  for (const FakeWorker* worker : {&first, &second}) ASSERT_OK(run.coordinator->Leave(worker->id()));
  EXPECT_THAT(run.coordinator->RequestStop("SIGTERM"), IsOkAndHolds(1));
  first.ReleaseRecords();
  second.ReleaseRecords();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.committed(), 1);
}

TEST(CoordinatorTest, AWorkerThatHasNothingToDoLeavesAtOnce) {
  TestRun run(SmallRun(), {.expected_workers = 2});
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->Leave(worker.id()));
  WaitFor([&] { return worker.finished_ok(); });
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  FakeWorker third(run), fourth(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == Reference(SmallRun()));
}

TEST(CoordinatorTest, ADaemonThatStoodStillLosesNobodyWhoSpeaksThen) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  FakeWorker worker(run, {.holds_records = true});
  const WorkerId silent =
      *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1});
  absl::SleepFor(absl::Milliseconds(120));
  clock.seconds = 1000;  // as after a suspension: nobody could be heard
  absl::SleepFor(absl::Milliseconds(120));
  EXPECT_EQ(run.coordinator->Status().counts.workers_lost, 0);
  EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
  WaitFor([&] {
    ++clock.seconds;
    EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
    absl::SleepFor(absl::Milliseconds(20));  // a few seconds between two looks, which is no standstill
    return run.coordinator->Status().counts.workers_lost == 1;
  });
  EXPECT_GE(clock.seconds, 1005);
  EXPECT_THAT(run.coordinator->Heartbeat(silent), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
  worker.ReleaseRecords();
  EXPECT_OK(run.coordinator->WaitUntilFinished());
}

TEST(CoordinatorTest, LossThatIsNotFiniteEndsAnEagerRun) {
  TestRun run(SmallRun(ClipMode::kNone));
  FakeWorker worker(run, {.breaks_loss = true});
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kOutOfRange, "the loss of vnode"));
  EXPECT_THAT(run.coordinator->Status().failure, ::testing::HasSubstr("is not finite"));
}

TEST(CoordinatorTest, ChoicesThatCameFirstHoldForTheirDeviceModelThroughCheckpointsAndResumes) {
  RunConfig config = SmallRun();
  config.checkpoint.every_steps = 2;
  const Choices first = {{"product", "1"}}, second = {{"product", "2"}};
  TestRun run(config);
  const auto attach = [](TestRun& to, const std::string& model) {
    return to.coordinator->Attach({.device_name = "cuda:0", .device_model = model, .device_cap_bytes = 1}).value();
  };
  EXPECT_TRUE(run.coordinator->HeldChoices("X").empty());
  const WorkerId x = attach(run, "X"), another_x = attach(run, "X"), y = attach(run, "Y");
  EXPECT_THAT(run.coordinator->OfferChoices(x, first), IsOkAndHolds(first));
  run.coordinator->Disconnect(x, absl::UnavailableError("killed"));  // what it chose stays
  EXPECT_THAT(run.coordinator->OfferChoices(another_x, second), IsOkAndHolds(first));
  EXPECT_THAT(run.coordinator->OfferChoices(y, second), IsOkAndHolds(second));
  EXPECT_THAT(run.coordinator->OfferChoices(y, {}), StatusIs(absl::StatusCode::kInvalidArgument, "choices: none"));
  EXPECT_THAT(run.coordinator->OfferChoices(x, first), StatusIs(absl::StatusCode::kNotFound, "worker_id"));
  EXPECT_EQ(run.coordinator->HeldChoices("X"), first);
  run.coordinator->Disconnect(another_x, absl::OkStatus());
  run.coordinator->Disconnect(y, absl::OkStatus());
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());

  const std::map<int64_t, Snapshot> snapshots = run.checkpointer->snapshots();
  const std::map<std::string, Choices> all = {{"X", first}, {"Y", second}};
  EXPECT_EQ(snapshots.at(2).state.choices, all);
  EXPECT_EQ(snapshots.at(4).state.choices, all);
  TestRun resumed(config, {.resume = &snapshots.at(2)});
  EXPECT_EQ(resumed.coordinator->HeldChoices("X"), first);
  EXPECT_THAT(resumed.coordinator->OfferChoices(attach(resumed, "X"), second), IsOkAndHolds(first));
  FakeWorker other(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  EXPECT_EQ(resumed.checkpointer->snapshots().at(4).state.choices, all);
}

TEST(CoordinatorTest, TheDeviceModelsThatARunWasComputedWithAreKeptAndWhereItWantsOneOthersAreRefused) {
  RunConfig config = SmallRun();
  config.relay.device_models = DeviceModelRule::kOne;
  config.checkpoint.every_steps = 2;
  TestRun run(config);
  EXPECT_THAT(run.coordinator->Status().device_models, ::testing::IsEmpty());
  const WorkerInfo other = {.device_name = "cpu", .device_model = "other", .device_cap_bytes = 1};
  const WorkerId idle = *run.coordinator->Attach(other);
  EXPECT_THAT(
      run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}),
      StatusIs(absl::StatusCode::kUnavailable, "computes with \"test\", one that came before it with \"other\""));
  run.coordinator->Disconnect(idle, absl::OkStatus());  // it was given nothing
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_THAT(run.coordinator->Status().device_models, ::testing::ElementsAre("test"));

  const std::map<int64_t, Snapshot> snapshots = run.checkpointer->snapshots();
  EXPECT_THAT(snapshots.at(2).state.device_models, ::testing::ElementsAre("test"));
  {
    TestRun resumed(config, {.resume = &snapshots.at(2)});
    EXPECT_THAT(resumed.coordinator->Attach(other),
                StatusIs(absl::StatusCode::kInvalidArgument, "relay.device_models: ONE: this worker computes with"));
    FakeWorker same(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  }
  config.relay.device_models = DeviceModelRule::kAny;
  TestRun mixed(config, {.resume = &snapshots.at(2)});
  EXPECT_OK(mixed.coordinator->Attach(other));
  FakeWorker same(mixed);
  ASSERT_OK(mixed.coordinator->WaitUntilFinished());
}

TEST(CoordinatorTest, NonsenseFromAWorkerIsRefusedByField) {
  TestRun run(SmallRun());
  const WorkerId id = *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1});
  EXPECT_THAT(run.coordinator->PassDone(id, StepId(0), {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.step: 0"));
  EXPECT_THAT(run.coordinator->PassDone(id, StepId(-1), {}, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(run.coordinator->PassDone(WorkerId(99), StepId(0), {}, {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(run.coordinator->Ready(id, {}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(run.coordinator->Attach({.device_name = "cpu", .device_model = "test"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "device_cap_bytes"));
  run.coordinator->Disconnect(WorkerId(99), absl::OkStatus());
  run.coordinator->Disconnect(id, absl::OkStatus());
}

TEST(CoordinatorTest, FailTellsEverybody) {
  TestRun run(SmallRun());
  run.coordinator->Fail(absl::InternalError("boom"));
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kInternal, "boom"));
  absl::Status pull;
  run.store->WhenPublished(BlobId(0), Version(1), [&](absl::Status status) { pull = status; });
  EXPECT_THAT(pull, StatusIs(absl::StatusCode::kFailedPrecondition, "boom"));
  run.coordinator->RequestCheckpoint([](absl::StatusOr<std::string> path) {
    EXPECT_THAT(path, StatusIs(absl::StatusCode::kFailedPrecondition, "boom"));
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, CoordinatorModeTest, AllModes());

}  // namespace
}  // namespace eps::server
