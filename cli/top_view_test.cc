#include "cli/top_view.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

proto::StatusReply TrainingReply() {
  proto::StatusReply status;
  status.set_state("training");
  status.set_step(105);
  status.set_steps(300);
  status.set_loss(2.6131);
  status.set_gradient_norm(0.5);
  status.set_learning_rate(1e-3);
  status.set_tokens_per_second(1640.4);
  status.set_eta_seconds(125);
  status.set_last_step_seconds(0.25);
  status.set_step_age_seconds(0.125);
  status.set_checkpoint_step(100);
  status.set_checkpoint_age_seconds(12.5);
  status.set_checkpoint_bytes(int64_t{3} << 20);
  status.set_checkpoint_write_seconds(0.75);
  status.set_model_state_bytes(int64_t{14} << 20);
  status.set_workers_attached(3);
  status.set_workers_lost(1);
  status.set_lease_seconds(10);
  for (const double loss : {5.5, 4.0, 3.0, 2.6131}) status.add_loss_curve(loss);
  for (const char* state : {"lost", "running", "idle"}) {
    proto::WorkerStatus* worker = status.add_workers();
    worker->set_worker_id(status.workers_size());
    worker->set_state(state);
    worker->set_device_name("cpu");
    worker->set_host_name("node-7");
    worker->set_device_cap_bytes(int64_t{16} << 20);
    worker->set_device_peak_bytes(int64_t{14} << 20);
    worker->set_silent_seconds(0.25);
    worker->set_pass_seconds(0.5);
    (*worker->mutable_wait_seconds())["pull"] = 0.1;
  }
  for (const int vnode : {0, 1, 2, 5}) status.mutable_workers(1)->add_vnodes(vnode);
  return status;
}

std::string Text(const proto::StatusReply& status, TopSize size) { return absl::StrJoin(TopView(status, size), "\n"); }

TEST(TopViewTest, WhileTheDaemonStartsWhatItDoesIsShownAlone) {
  proto::StatusReply status;
  status.set_state("starting");
  status.mutable_start_work();
  EXPECT_THAT(TopView(status, {}), ElementsAre("starting"));
  status.mutable_start_work()->set_what("reading the checkpoint");
  status.mutable_start_work()->set_done_bytes(3 << 20);
  status.mutable_start_work()->set_total_bytes(12 << 20);
  status.mutable_start_work()->set_seconds(14.25);
  EXPECT_THAT(TopView(status, {}), ElementsAre("starting  [#####---------------] 25%",
                                               "reading the checkpoint, 3.0 MiB of 12.0 MiB, 14.2 s"));
}

TEST(TopViewTest, ShowsTheRunItsMemoryItsCheckpointsAndItsWorkers) {
  const std::string text = Text(TrainingReply(), {200, 60});
  for (const char* part :
       {"training  [#######-------------] 35%  step 105 of 300  eta 2:05",
        "loss 2.6131 nats  gradient norm 0.5  learning rate 0.001  1640 tokens/s",
        "last step 0.250 s, ended 0.125 s ago", "state 14.0 MiB",
        "checkpoint  step 100, 12.5 s ago, 3.0 MiB in 0.750 s\n", "attached 3  lost 1", "lease 10.0 s",
        "   2  running  cpu     0-2,5   0.500 s    0.250 s  88% of 16.0 MiB  pull 20%"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_LT(text.find("running"), text.rfind("lost")) << text;
  proto::StatusReply of_classes = TrainingReply();
  of_classes.set_counted("samples");
  EXPECT_THAT(Text(of_classes, {200, 60}), HasSubstr("  1640 samples/s"));
}

TEST(TopViewTest, WorkersOfSeveralHostsSayWhereTheyRun) {
  proto::StatusReply status = TrainingReply();
  EXPECT_THAT(Text(status, {200, 60}), Not(HasSubstr("node-7")));
  status.mutable_workers(1)->set_host_name("another-with-a-long-name");
  const std::string text = Text(status, {200, 60});
  EXPECT_THAT(text, HasSubstr("  id  state    host          device"));
  EXPECT_THAT(text, HasSubstr("   2  running  another-wi..  cpu     0-2,5 "));
  EXPECT_THAT(text, HasSubstr("node-7        cpu"));
}

TEST(TopViewTest, FitsEveryTerminal) {
  proto::StatusReply status = TrainingReply();
  for (int i = 0; i < 300; ++i) *status.add_workers() = status.workers(1);
  for (const int rows : {1, 5, 10, 19, 24, 200}) {
    for (const int columns : {1, 12, 80, 300}) {
      const std::vector<std::string> lines = TopView(status, {columns, rows});
      EXPECT_LE(static_cast<int>(lines.size()), rows);
      for (const std::string& line : lines) EXPECT_LE(static_cast<int>(line.size()), columns);
    }
  }
  EXPECT_THAT(TopView(status, {80, 24}).back(), HasSubstr(" more"));
}

TEST(TopViewTest, AFailedCheckpointIsShown) {
  proto::StatusReply status = TrainingReply();
  status.set_checkpoint_failures(2);
  status.set_checkpoint_error("No space left on device");
  EXPECT_THAT(Text(status, {200, 60}), HasSubstr("FAILED 2 times: No space left on device"));
}

TEST(TopViewTest, WhatIsWrongWithKeysIsShown) {
  proto::StatusReply status = TrainingReply();
  status.mutable_keys()->set_expires_in_seconds(15 * 86400);
  EXPECT_THAT(Text(status, {200, 60}), Not(HasSubstr("certificate")));
  status.mutable_keys()->set_expires_in_seconds(13 * 86400);
  status.mutable_keys()->set_not_reloaded("server.key is not the key of server.crt");
  const std::string text = Text(status, {200, 60});
  EXPECT_THAT(text,
              HasSubstr("\nnew keys are NOT in use, the old ones go on: server.key is not the key of server.crt\n"));
  EXPECT_THAT(text, HasSubstr("\na certificate of the daemon ends in 13 d 0 h\n"));
}

TEST(TopViewTest, AStepThatWaitsAndWorkersThatAreStartedAreShown) {
  proto::StatusReply status = TrainingReply();
  EXPECT_THAT(Text(status, {200, 60}), Not(HasSubstr("THIS STEP WAITS")));
  status.mutable_step_wait()->set_cause("compute");
  status.mutable_step_wait()->set_seconds(65);
  status.mutable_step_wait()->add_worker_id(2);
  status.mutable_start_order()->set_number(1);
  status.mutable_start_order()->set_workers(4);
  const std::string text = Text(status, {200, 60});
  EXPECT_THAT(text, HasSubstr("\nTHIS STEP WAITS for compute, 65.0 s, of worker 2\n"));
  EXPECT_THAT(text, HasSubstr("lease 10.0 s  4 wanted, being started\n"));
}

// In 80 columns, too: nothing of it is cut off, at any width.
TEST(TopViewTest, WhatComputeWaitsForAndHowLongAWorkerWasSilentFitAnOrdinaryTerminal) {
  proto::StatusReply status = TrainingReply();
  status.set_model_flops_per_second(1.23e12);
  for (const char* cause : {"pull", "stash", "version", "room"}) {
    (*status.mutable_wait_fraction())[cause] = 0.17;
    (*status.mutable_workers(1)->mutable_wait_seconds())[cause] = 0.1;
  }
  const std::string wide = Text(status, {200, 60}), narrow = Text(status, {80, 24});
  EXPECT_THAT(wide, HasSubstr("88% of 16.0 MiB  pull 20% stash 20% version 20% room 20%\n"));
  EXPECT_THAT(wide, HasSubstr("   3  idle     cpu     -       0.500 s    0.250 s  88% of 16.0 MiB  pull 20%\n"));
  EXPECT_THAT(narrow, HasSubstr("\n  compute waits for pull 17% stash 17% version 17% room 17%\n"));
  EXPECT_THAT(narrow, HasSubstr("1.23 TFLOP/s\n"));
  EXPECT_THAT(narrow, HasSubstr("   2  running  cpu     0-2,5   0.500 s    0.250 s  88% of 16.0 MiB\n"
                                "      waits for pull 20% stash 20% version 20% room 20%\n"));
  EXPECT_THAT(narrow, HasSubstr("   1  lost     cpu     -       0.500 s    -        88% of 16.0 MiB"));
  EXPECT_THAT(narrow, HasSubstr(" |*"));  // and the loss curve has room
}

TEST(TopViewTest, TheLossCurveLeavesRoomForTheFirstWorkers) {
  proto::StatusReply status = TrainingReply();
  for (int i = 0; i < 8; ++i) *status.add_workers() = status.workers(1);
  for (const int columns : {80, 200}) {
    int workers = 0;
    for (const std::string& line : TopView(status, {columns, 24}))
      workers += line.rfind("   2  running", 0) == 0 ? 1 : 0;
    EXPECT_GE(workers, 4) << columns;
  }
}

TEST(TopViewTest, AFailureIsReadToItsEnd) {
  proto::StatusReply status = TrainingReply();
  status.set_state("failed");
  status.set_failure("step 1: the gradient of layer ln_f was not finite in 20 steps one behind the other, the last");
  EXPECT_THAT(Text(status, {80, 24}),
              HasSubstr("\nfailed: step 1: the gradient of layer ln_f was not finite in 20 steps "
                        "one behind\n  the other, the last\n"));
}

TEST(TopViewTest, AnEvaluationAndACheckpointThatGoOnAreShown) {
  proto::StatusReply status = TrainingReply();
  EXPECT_THAT(Text(status, {80, 24}), Not(HasSubstr("evaluating")));
  EXPECT_THAT(Text(status, {80, 24}), Not(HasSubstr("being written")));
  status.mutable_evaluating()->set_step(40);
  status.mutable_evaluating()->set_share(0.31);
  status.mutable_evaluating()->set_seconds(3.2);
  status.set_checkpoint_writing_step(112);
  status.set_checkpoint_writing_seconds(9.4);
  EXPECT_THAT(Text(status, {80, 24}), HasSubstr("\nevaluating after step 40: 31% of it, 3.200 s\n"));
  EXPECT_THAT(Text(status, {80, 24}), HasSubstr("in 0.750 s\n  being written: step 112, 9.400 s\n"));
}

TEST(TopViewTest, PairsAreShownWhereThereAreAny) {
  proto::StatusReply status = TrainingReply();
  EXPECT_THAT(Text(status, {80, 24}), Not(HasSubstr("margin")));
  status.mutable_pairs()->set_accuracy(0.5);
  status.mutable_pairs()->set_chosen_reward(-2);
  status.mutable_evaluation()->mutable_pairs()->set_rejected_reward(-0.25);
  EXPECT_THAT(Text(status, {80, 24}), HasSubstr("\npairs: accuracy 0.5; rewards -2 chosen, 0 rejected, margin -2\n"));
  EXPECT_THAT(Text(status, {80, 24}), HasSubstr("reward margin 0.25"));
}

TEST(TopViewTest, ExpertsAreShownWhereThereAreAny) {
  proto::StatusReply status = TrainingReply();
  EXPECT_THAT(Text(status, {80, 24}), Not(HasSubstr("experts")));
  status.mutable_expert_load()->set_busiest(2.5);
  status.mutable_expert_load()->set_running(512);
  EXPECT_THAT(Text(status, {80, 24}), HasSubstr("\nexperts: busiest 2.50x of an even share (block 0, expert 0)"));
}

TEST(TopViewTest, WorkersThatWentStandBehindThoseThatCompute) {
  proto::StatusReply status = TrainingReply();
  status.mutable_workers(0)->set_state("left");
  const std::string text = Text(status, {80, 24});
  EXPECT_LT(text.find("   3  idle"), text.find("   1  left"));
}

TEST(TopViewTest, WhatComesFromOutsideCannotSteerTheTerminal) {
  proto::StatusReply status = TrainingReply();
  status.mutable_workers(1)->set_device_name("cpu\033[2J\r\n");
  const std::vector<std::string> lines = TopView(status, {200, 60});
  for (const std::string& line : lines) EXPECT_EQ(line.find_first_of("\033\r\n"), std::string::npos);
}

TEST(TopViewTest, AnEmptyReplyIsShownToo) { EXPECT_THAT(Text(proto::StatusReply(), {80, 24}), Not(IsEmpty())); }

TEST(TopViewTest, WhatNobodyHasMeasuredIsNoNumber) {
  proto::StatusReply status;
  status.set_state("waiting_for_workers");
  status.set_gradient_norm(-1);
  status.add_workers()->set_state("attaching");
  const std::string text = Text(status, {200, 60});
  EXPECT_THAT(text, HasSubstr("waiting for workers  [-"));
  EXPECT_THAT(text, HasSubstr("\nworkers: none is ready\n"));
  EXPECT_THAT(text,
              HasSubstr("\nloss -  gradient norm -  learning rate -  - tokens/s  -\nlast step none in this sitting, "
                        "which began 0.000 s ago  skipped 0"));
  EXPECT_THAT(text, HasSubstr("compute waits for -\n"));
  EXPECT_THAT(text, Not(HasSubstr("0.000 s  nothing")));
}

TEST(TopViewTest, VnodesAreRanges) {
  EXPECT_EQ(FormatVnodes({}), "-");
  EXPECT_EQ(FormatVnodes({3}), "3");
  EXPECT_EQ(FormatVnodes({0, 1, 3, 5, 6, 7}), "0-1,3,5-7");
}

TEST(TopViewTest, APlotFallsWithTheLoss) {
  EXPECT_THAT(PlotLines({3, 2, 1}, 3, 80), ElementsAre("       3 |*  ", "         | * ", "       1 |  *"));
  EXPECT_THAT(PlotLines({2, 2}, 2, 80), ElementsAre("       2 |**", "       2 |  "));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(PlotLines({nan, 1, 3}, 2, 80), ElementsAre("       3 |  *", "       1 | * "));
  EXPECT_THAT(PlotLines({nan}, 2, 80), IsEmpty());
  EXPECT_THAT(PlotLines({}, 2, 80), IsEmpty());
}

}  // namespace
}  // namespace eps::cli
