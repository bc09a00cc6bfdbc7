#include "cli/status_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

proto::StatusReply StatusOfTraining() {
  proto::StatusReply status;
  status.set_state("training");
  status.set_step(105);
  status.set_steps(300);
  status.set_loss(2.5);
  status.set_gradient_norm(0.5);
  status.set_learning_rate(0.001);
  status.set_eta_seconds(125);
  status.set_last_step_seconds(0.25);
  status.set_step_age_seconds(7.7);
  status.set_skipped_steps(3);
  status.set_step_waits(2);
  status.set_lease_seconds(10);
  status.set_workers_attached(4);
  status.set_workers_lost(1);
  status.set_vnodes_redone(2);
  for (const char* state : {"running", "lost", "left"}) {
    proto::WorkerStatus* worker = status.add_workers();
    worker->set_worker_id(status.workers_size());
    worker->set_state(state);
    worker->set_device_name("cpu");
    worker->set_silent_seconds(7.7);
  }
  return status;
}

TEST(StatusTextTest, ARunThatStandsStillShowsItByAges) {
  const std::string text = StatusText(StatusOfTraining());
  EXPECT_THAT(text, HasSubstr("\nstep                 105 of 300, eta 2:05\n"));
  EXPECT_THAT(text, HasSubstr("\nlast step            0.250 s, ended 7.700 s ago; skipped 3, waited too long 2\n"));
  EXPECT_THAT(text, HasSubstr("\nworkers              attached 4, lost 1, virtual nodes redone 2\n"));
  EXPECT_THAT(text, HasSubstr("\nworker 1             running, silent 7.700 s of 10.0 s, cpu, pid 0"));
  EXPECT_THAT(text, HasSubstr("\nworker 2             lost, cpu"));
  EXPECT_THAT(text, HasSubstr("\nworker 3             left, cpu"));
}

TEST(StatusTextTest, KeysAreSpokenOfWhereThereAreSome) {
  proto::StatusReply status = StatusOfTraining();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("certificate")));
  status.mutable_keys()->set_expires_in_seconds(30 * 86400 + 3600);
  EXPECT_THAT(StatusText(status), HasSubstr("\ncertificate          ends in 30 d 1 h\nworkers "));
  status.mutable_keys()->set_expires_in_seconds(-302);
  status.mutable_keys()->set_not_reloaded("tokens: line 2 is no token");
  EXPECT_THAT(
      StatusText(status),
      HasSubstr("\ncertificate          ended 5 min 2 s ago\n"
                "keys                 new ones are NOT in use, the old ones go on: tokens: line 2 is no token\n"));
}

TEST(StatusTextTest, WhatASittingHasNotSeenYetIsNoNumber) {
  proto::StatusReply status = StatusOfTraining();  // resumed
  status.set_learning_rate(-1);
  status.set_gradient_norm(-1);
  status.set_last_step_seconds(0);
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("loss                 2.5 nats a token; gradient norm -, learning rate -\n"));
  EXPECT_THAT(text, HasSubstr("last step            none in this sitting, which began 7.700 s ago; skipped 3"));
  EXPECT_THAT(text, HasSubstr("speed                - tokens/s, - of the model"));
  EXPECT_THAT(text, HasSubstr("compute waits for    -\n"));
}

TEST(StatusTextTest, WhatIsCountedIsSaidOfSpeedAndSum) {
  proto::StatusReply status = StatusOfTraining();
  status.set_tokens_per_second(12.5);
  status.set_tokens(840);
  EXPECT_THAT(StatusText(status), HasSubstr("speed                12 tokens/s, - of the model, 840 tokens in all\n"));
  status.set_counted("samples");
  status.mutable_evaluation()->set_tokens(64);
  EXPECT_THAT(StatusText(status), HasSubstr("speed                12 samples/s, - of the model, 840 samples in all\n"));
  EXPECT_THAT(StatusText(status), HasSubstr(" of 64 samples, "));
  EXPECT_THAT(StatusText(status), HasSubstr(" nats a sample after step "));
  status.set_counted("pairs");
  EXPECT_THAT(StatusText(status), HasSubstr(" nats a pair; gradient norm "));
}

TEST(StatusTextTest, AnEvaluationAndACheckpointThatGoOnAreShown) {
  proto::StatusReply status = StatusOfTraining();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("evaluating")));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("being written")));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("in this sitting; the newest")));
  status.mutable_evaluating()->set_step(40);
  status.mutable_evaluating()->set_share(0.315);
  status.mutable_evaluating()->set_seconds(3.2);
  status.set_checkpoint_writing_step(112);
  status.set_checkpoint_writing_seconds(9.4);
  status.set_newest_checkpoint("out/x/checkpoints/step-00000100");
  status.set_checkpoints_written(2);
  status.set_checkpoint_age_seconds(12.5);
  status.set_checkpoint_bytes(int64_t{3} << 20);
  status.set_checkpoint_write_seconds(0.75);
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("\nevaluating           after step 40: 31% of it, 3.200 s\n"));
  EXPECT_THAT(text, HasSubstr("\nnewest checkpoint    out/x/checkpoints/step-00000100\n"));
  EXPECT_THAT(text, HasSubstr("\ncheckpoints          2 written in this sitting; the newest 12.5 s ago, 3.0 MiB in "
                              "0.750 s\nbeing written        step 112, 9.400 s\n"));
}

TEST(StatusTextTest, PairsAreShownWhereThereAreAny) {
  proto::StatusReply status = StatusOfTraining();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("rewards")));
  status.mutable_pairs()->set_accuracy(0.8125);
  status.mutable_pairs()->set_chosen_reward(0.3125);
  status.mutable_pairs()->set_rejected_reward(-0.421);
  status.mutable_evaluation()->mutable_pairs()->set_chosen_reward(1);
  EXPECT_THAT(StatusText(status), HasSubstr("\npairs                accuracy 0.8125; rewards 0.312 chosen, -0.421 "
                                            "rejected, margin 0.734\n"));
  EXPECT_THAT(StatusText(status), HasSubstr(", rewards 1 chosen, 0 rejected, margin 1, "));
}

TEST(StatusTextTest, ExpertsAreShownWhereThereAreAny) {
  proto::StatusReply status = StatusOfTraining();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("experts")));
  proto::ExpertLoad& load = *status.mutable_expert_load();
  load.set_busiest(2.5);
  load.set_busiest_block(1);
  load.set_busiest_expert(17);
  load.set_mean_busiest(1.754);
  load.set_idle(3);
  load.set_running(512);
  EXPECT_THAT(
      StatusText(status),
      HasSubstr("\nexperts              busiest 2.50x of an even share (block 1, expert 17), 1.75x in the mean over "
                "blocks; 3 of 512 without a token\n"));
}

TEST(StatusTextTest, ARunThatWaitsForWorkersSaysForHowManyAndUntilWhen) {
  proto::StatusReply status;
  status.set_state("waiting_for_workers");
  status.set_workers_expected(3);
  status.set_start_in_seconds(-1);
  EXPECT_THAT(StatusText(status), HasSubstr("state                waiting for workers\n"));
  status.set_parameters(1200);
  for (const int64_t all : {0, 1200}) {
    status.set_trainable_parameters(all);
    EXPECT_THAT(StatusText(status), HasSubstr("model                1200 parameters, state "));
  }
  status.set_trainable_parameters(40);
  EXPECT_THAT(StatusText(status), HasSubstr("model                1200 parameters, of which 40 train, state "));
  EXPECT_THAT(StatusText(status), HasSubstr("\nwaits for workers    0 of 3 expected are ready\n"));
  status.add_workers()->set_state("idle");
  status.set_start_in_seconds(41);
  EXPECT_THAT(StatusText(status), HasSubstr("\nwaits for workers    1 of 3 expected are ready; begins with that in "
                                            "41.0 s\n"));
}

TEST(StatusTextTest, AFailureAndWhatADaemonThatStartsIsAtAreTold) {
  proto::StatusReply status = StatusOfTraining();
  status.set_state("failed");
  status.set_failure("step 1: the gradient\x1b");
  EXPECT_THAT(StatusText(status), HasSubstr("state                failed: step 1: the gradient?\n"));
  proto::StatusReply starting;
  starting.set_state("starting");
  starting.mutable_start_work();
  EXPECT_EQ(StatusText(starting), "state                starting\nat work on           nothing that takes long yet\n");
}

}  // namespace
}  // namespace eps::cli
