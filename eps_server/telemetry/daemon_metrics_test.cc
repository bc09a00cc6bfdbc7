#include "eps_server/telemetry/daemon_metrics.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/telemetry/metric_table.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int64_t NumSeries(const std::string& page) {
  const std::vector<absl::string_view> lines = absl::StrSplit(page, '\n', absl::SkipEmpty());
  return std::count_if(lines.begin(), lines.end(), [](absl::string_view line) { return line.front() != '#'; });
}

WorkerStatus Worker(int id, WorkerState state, double pass_seconds) {
  WorkerStatus worker;
  worker.id = WorkerId(id);
  worker.state = state;
  worker.info.device_cap_bytes = 1000 + id;
  worker.last_pass.seconds = pass_seconds;
  worker.last_pass.device_peak_bytes = 900 + id;
  worker.memory.device_outside_bytes = 800 + id;
  worker.silent_for = absl::Seconds(id);
  return worker;
}

DaemonView Training() {
  DaemonView view;
  view.phase = "training";
  view.expected_resident_bytes = 1 << 30;
  view.checkpoint_every_steps = 100;
  view.floor_bytes_per_second = 8e9;
  view.grpc_pulled_bytes = 4096;
  view.waiting_pulls = 6;
  view.checkpoint_buffer_bytes = 512;
  view.keys.expires = absl::FromUnixSeconds(2'000'000'000);
  view.keys.not_reloaded = "server.key: is not the key of server.crt";
  view.offloaded_bytes = 3000;
  view.paging = {.read_bytes = 5000, .written_bytes = 4000, .wait_seconds = 1.25};
  view.start_work = {.done_bytes = 3, .total_bytes = 4};
  RunStatus& status = view.status;
  status.step = 7;
  status.steps = 10;
  status.tokens = 700;
  status.counts.steps = 2;
  status.counts.tokens = 200;
  status.counts.model_flops = 6e12;
  status.model_flops_per_second = 1.5e12;
  status.blobs_updated = {true, false, false};
  status.step_wait = StepWait{.seconds = 12.5, .cause = "push"};
  status.checkpoint_writing_seconds = 1.5;
  status.loss = 2.5;
  status.learning_rate = 1e-3;
  status.gradient_norm = 0.5;
  status.last_step_seconds = 0.25;
  status.eta_seconds = 3;
  status.checkpoint_step = 5;
  status.checkpoints_written = 1;
  status.checkpoint_bytes = 123;
  status.counts.update_held_seconds = 0.75;
  status.counts.wait_seconds = {{"pull", 1.5}};
  status.workers = {Worker(1, WorkerState::kRunning, 3), Worker(2, WorkerState::kRunning, 1),
                    Worker(3, WorkerState::kIdle, 2), Worker(9, WorkerState::kLost, 100),
                    Worker(8, WorkerState::kLeft, 200)};
  return view;
}

TEST(DaemonMetricsTest, TheNewestEvaluationHasSamplesOnceThereIsOne) {
  DaemonView view = Training();
  EXPECT_THAT(DaemonMetricsText(view, 0), Not(HasSubstr("\neps_eval_loss")));
  view.status.evaluation = {.version = Version(5), .loss = 2.75, .accuracy = 0.5, .tokens = 9, .seconds = 1};
  const std::string page = DaemonMetricsText(view, 0);
  EXPECT_THAT(page, HasSubstr("\neps_eval_loss 2.75\n"));
  EXPECT_THAT(page, HasSubstr("\neps_eval_accuracy 0.5\n"));
  EXPECT_THAT(page, HasSubstr("\neps_eval_step 5\n"));
}

TEST(DaemonMetricsTest, PreferencesHaveSamplesWhereThereAreAny) {
  DaemonView view = Training();
  EXPECT_THAT(DaemonMetricsText(view, 0), Not(HasSubstr("\neps_pair_")));
  view.status.pairs = {.accuracy = 0.75, .rewards = {.chosen = 0.25, .rejected = -0.5}};
  const std::string page = DaemonMetricsText(view, 0);
  EXPECT_THAT(page, HasSubstr("\neps_pair_accuracy 0.75\n"));
  EXPECT_THAT(page, HasSubstr("\neps_pair_reward{answer=\"chosen\"} 0.25\n"));
  EXPECT_THAT(page, HasSubstr("\neps_pair_reward{answer=\"rejected\"} -0.5\n"));
}

TEST(DaemonMetricsTest, ExpertsHaveSamplesWhereThereAreAny) {
  DaemonView view = Training();
  EXPECT_THAT(DaemonMetricsText(view, 0), Not(HasSubstr("\neps_expert")));
  view.status.expert_load = LoadOf({3, 1, 0, 4}, {.blocks = 2, .experts = 2, .per_token = 1});
  const std::string page = DaemonMetricsText(view, 0);
  EXPECT_THAT(page, HasSubstr("\neps_expert_busiest_load{stat=\"mean\"} 1.75\n"));
  EXPECT_THAT(page, HasSubstr("\neps_expert_busiest_load{stat=\"max\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("\neps_experts_idle 1\n"));
  EXPECT_THAT(page, HasSubstr("\neps_experts 4\n"));
}

TEST(DaemonMetricsTest, AnEvaluationThatGoesOnShowsHowFarItIs) {
  DaemonView view = Training();
  view.status.counts.evaluation_seconds = 42;
  EXPECT_THAT(DaemonMetricsText(view, 0), HasSubstr("\neps_evaluating_seconds 0\n"));
  view.status.evaluating = {.version = Version(40), .share = 0.25, .seconds = 3.5};
  const std::string page = DaemonMetricsText(view, 0);
  EXPECT_THAT(page, HasSubstr("\neps_evaluating_seconds 3.5\n"));
  EXPECT_THAT(page, HasSubstr("\neps_evaluating_ratio 0.25\n"));
  EXPECT_THAT(page, HasSubstr("\neps_eval_seconds_total 42\n"));
}

TEST(DaemonMetricsTest, TheAgesOfARunThatIsOverGoOn) {
  DaemonView view = Training();
  view.status.step_age_seconds = 0.5;
  view.status.checkpoint_age_seconds = 2;
  const std::string page = DaemonMetricsText(Aged(view, absl::Seconds(10)), 0);
  EXPECT_THAT(page, HasSubstr("\neps_step_age_seconds 10.5\n"));
  EXPECT_THAT(page, HasSubstr("\neps_checkpoint_age_seconds 12\n"));
}

TEST(DaemonMetricsTest, TheTableIsGood) { EXPECT_OK(CheckMetricTable(DaemonMetricTable(), "eps_")); }

TEST(DaemonMetricsTest, ShowsWhatTheRunSays) {
  const std::string page = DaemonMetricsText(Training(), 1e9);
  for (const char* line : {"eps_start_time_seconds 1000000000\n",
                           "eps_run_phase{phase=\"training\"} 1\n",
                           "eps_run_phase{phase=\"failed\"} 0\n",
                           "eps_step 7\n",
                           "eps_steps_total 2\n",
                           "eps_tokens 700\n",
                           "eps_tokens_total 200\n",
                           "eps_model_flops_total 6000000000000\n",
                           "eps_model_flops_per_second 1500000000000\n",
                           "eps_blobs 3\n",
                           "eps_pulls_waiting 6\n",
                           "eps_blobs_pending 2\n",
                           "eps_step_wait_seconds{cause=\"push\"} 12.5\n",
                           "eps_step_wait_seconds{cause=\"data\"} 0\n",
                           "eps_memory_bytes{kind=\"checkpoint\"} 512\n",
                           "eps_checkpoint_failing 0\n",
                           "eps_checkpoint_writing_seconds 1.5\n",
                           "eps_certificate_expiry_time_seconds 2000000000\n",
                           "eps_keys_stale 1\n",
                           "eps_start_done_bytes 3\n",
                           "eps_start_total_bytes 4\n",
                           "eps_run_steps 10\n",
                           "eps_loss_nats 2.5\n",
                           "eps_eta_seconds 3\n",
                           "eps_step_seconds 0.25\n",
                           "eps_pulled_bytes_total{transport=\"grpc\"} 4096\n",
                           "eps_wait_seconds_total{cause=\"pull\"} 1.5\n",
                           "eps_wait_seconds_total{cause=\"version\"} 0\n",
                           "eps_memory_limit_bytes{kind=\"resident\"} 1073741824\n",
                           "eps_checkpoint_step 5\n",
                           "eps_checkpoint_bytes 123\n",
                           "eps_checkpoint_hold_seconds_total 0.75\n",
                           "eps_update_floor_bytes_per_second 8000000000\n",
                           "eps_offloaded_bytes 3000\n",
                           "eps_offload_bytes_total{direction=\"read\"} 5000\n",
                           "eps_offload_bytes_total{direction=\"written\"} 4000\n",
                           "eps_offload_wait_seconds_total 1.25\n",
                           "eps_checkpoint_every_steps 100\n"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", line)));
  }
}

TEST(DaemonMetricsTest, WorkersAreCountedAndSummedUpWithoutTheLost) {
  const std::string page = DaemonMetricsText(Training(), 0);
  for (const char* line :
       {"eps_workers{state=\"running\"} 2\n", "eps_workers{state=\"idle\"} 1\n", "eps_workers{state=\"attaching\"} 0\n",
        "eps_pass_seconds{stat=\"min\"} 1\n", "eps_pass_seconds{stat=\"median\"} 2\n",
        "eps_pass_seconds{stat=\"max\"} 3\n", "eps_lease_age_seconds 3\n",
        "eps_device_memory_bytes{kind=\"cap\"} 1003\n", "eps_device_memory_bytes{kind=\"peak\"} 903\n",
        "eps_device_memory_bytes{kind=\"outside\"} 803\n"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", line)));
  }
}

TEST(DaemonMetricsTest, WhatIsNotKnownHasNoSample) {
  DaemonView view = Training();
  view.status.gradient_norm = -1;
  view.status.learning_rate = -1;
  view.status.eta_seconds = -1;
  view.status.checkpoint_step = -1;
  view.status.checkpoints_written = 0;
  const std::string page = DaemonMetricsText(view, 0);
  for (const char* name :
       {"eps_gradient_norm", "eps_learning_rate", "eps_eta_seconds", "eps_checkpoint_step", "eps_checkpoint_bytes"}) {
    EXPECT_THAT(page, Not(HasSubstr(absl::StrCat("\n", name, " "))));
  }
}

TEST(DaemonMetricsTest, WhileItStartsOnlyThePhaseAndWhatIsDoneAreKnown) {
  EXPECT_EQ(NumSeries(DaemonMetricsText(DaemonView(), 0)), 10);  // the start, seven phases, what is done
}

TEST(DaemonMetricsTest, ACheckpointThatCouldNotBeWrittenShowsUntilOneIs) {
  DaemonView view = Training();
  view.status.checkpoint_error = "disk full";
  EXPECT_THAT(DaemonMetricsText(view, 0), HasSubstr("\neps_checkpoint_failing 1\n"));
}

TEST(DaemonMetricsTest, TargetsAreThePagesOfAttachedWorkers) {
  DaemonView view = Training();
  EXPECT_EQ(WorkerTargetsJson(view), "[]\n");  // nobody told
  view.status.workers[0].info.metrics_address = "127.0.0.1:9001";
  view.status.workers[1].info.metrics_address = "[::1]:9002";
  view.status.workers[3].info.metrics_address = "127.0.0.1:9009";  // of one that is lost
  view.status.workers[4].info.metrics_address = "127.0.0.1:9008";  // of one that has left
  EXPECT_EQ(WorkerTargetsJson(view), R"([{"labels":{"job":"gpu_worker","worker":"1"},"targets":["127.0.0.1:9001"]},)"
                                     R"({"labels":{"job":"gpu_worker","worker":"2"},"targets":["[::1]:9002"]}])"
                                     "\n");
  view.status.workers[2].info.metrics_address = "127.0.0.1:9001";  // attached anew; its old lease has not run out
  EXPECT_THAT(WorkerTargetsJson(view), AllOf(HasSubstr(R"("worker":"3")"), Not(HasSubstr(R"("worker":"1")"))));
}

TEST(DaemonMetricsTest, NothingAddsSeries) {
  DaemonView view = Training();
  view.status.evaluation = {.version = Version(5), .loss = 2.75};
  view.status.expert_load = LoadOf({1, 1}, {.blocks = 1, .experts = 2, .per_token = 1});
  view.status.pairs = {.accuracy = 1};
  const int64_t series = NumSeries(DaemonMetricsText(view, 0));
  EXPECT_EQ(series, MaxSeries(DaemonMetricTable()));
  for (int i = 10; i < 5000; ++i) view.status.workers.push_back(Worker(i, WorkerState::kRunning, i));
  view.status.counts.wait_seconds["evil\"} 1\nx"] = 1;  // a worker's words
  view.status.counts.wait_seconds["other"] = 1;
  EXPECT_EQ(NumSeries(DaemonMetricsText(view, 0)), series);
}

}  // namespace
}  // namespace eps::server
