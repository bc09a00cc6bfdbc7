#include "cli/progress.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

proto::StatusReply Training() {
  proto::StatusReply status;
  status.set_state("training");
  status.set_step(105);
  status.set_steps(300);
  status.set_loss(2.6131);
  status.set_tokens_per_second(1640.4);
  status.set_eta_seconds(125);
  status.set_last_step_seconds(0.25);
  (*status.mutable_wait_fraction())["pull"] = 0.012;
  (*status.mutable_wait_fraction())["stash"] = 0.001;
  (*status.mutable_wait_fraction())["version"] = 0.031;
  for (const int64_t peak : {int64_t{3} << 20, int64_t{14} << 20}) {
    proto::WorkerStatus* worker = status.add_workers();
    worker->set_device_cap_bytes(int64_t{16} << 20);
    worker->set_device_peak_bytes(peak);
  }
  return status;
}

TEST(ProgressTest, ALineSaysHowFarHowFastHowLongAndWhatWaits) {
  EXPECT_EQ(
      ProgressLine(Training(), 200),
      "[#######-------------]  35% step 105/300  loss 2.613  1640 tok/s  eta 2:05  dev 14.0 MiB of 16.0 MiB  waits "
      "pull 1% version 3%");
}

TEST(ProgressTest, ASpeedSaysWhatItCountsWhereThatIsNotEveryToken) {
  proto::StatusReply status = Training();
  for (const char* counted : {"counted tokens", "samples"}) {
    status.set_counted(counted);
    EXPECT_THAT(ProgressLine(status, 200), testing::HasSubstr(absl::StrCat("  1640 ", counted, "/s  eta 2:05")));
  }
  status.set_counted("tokens");
  EXPECT_THAT(ProgressLine(status, 200), testing::HasSubstr("  1640 tok/s  "));
}

TEST(ProgressTest, TheDeviceThatIsShownIsTheOneNearestItsCap) {
  proto::StatusReply status = Training();
  status.mutable_workers(0)->set_device_cap_bytes(int64_t{80} << 30);
  status.mutable_workers(0)->set_device_peak_bytes(int64_t{10} << 30);
  EXPECT_THAT(ProgressLine(status, 200), testing::HasSubstr("  dev 14.0 MiB of 16.0 MiB  "));
  status.mutable_workers(1)->set_device_peak_bytes(int64_t{1} << 20);
  EXPECT_THAT(ProgressLine(status, 200), testing::HasSubstr("  dev 10.0 GiB of 80.0 GiB  "));
}

TEST(ProgressTest, RatesOfOperationsHaveThreeDigitsAndAPrefix) {
  EXPECT_EQ(FormatFlopRate(0), "0 FLOP/s");
  EXPECT_EQ(FormatFlopRate(999.4), "999 FLOP/s");
  EXPECT_EQ(FormatFlopRate(999.6), "1 kFLOP/s");
  EXPECT_EQ(FormatFlopRate(1.2345e12), "1.23 TFLOP/s");
  EXPECT_EQ(FormatFlopRate(272e12), "272 TFLOP/s");
}

TEST(ProgressTest, ANarrowTerminalLosesWholeFields) {
  const std::string memory = " 35% step 105/300  loss 2.613  1640 tok/s  eta 2:05  dev 14.0 MiB of 16.0 MiB";
  EXPECT_EQ(ProgressLine(Training(), 110), memory + "  waits pull 1% version 3%");
  EXPECT_EQ(ProgressLine(Training(), 80), memory);
  EXPECT_EQ(ProgressLine(Training(), 60), " 35% step 105/300  loss 2.613  1640 tok/s  eta 2:05");
  EXPECT_EQ(ProgressLine(Training(), 10), " 35% step ");
}

TEST(ProgressTest, TheNewestEvaluationStandsBehindTheLoss) {
  proto::StatusReply status = Training();
  status.mutable_evaluation()->set_loss(2.70149);
  EXPECT_EQ(ProgressLine(status, 70), " 35% step 105/300  loss 2.613  eval 2.701  1640 tok/s  eta 2:05");
}

TEST(ProgressTest, BeforeTheFirstStepIsDoneNothingIsMadeUp) {
  proto::StatusReply status = Training();
  status.set_step(0);
  EXPECT_EQ(ProgressLine(status, 200), "  0% step 0/300");
}

TEST(ProgressTest, AStepThatTakesLongShowsHowFarItIs) {
  proto::StatusReply status = Training();
  status.set_step(0);
  status.set_blobs(50);
  status.set_blobs_pending(38);
  status.set_step_seconds(9.9);
  EXPECT_EQ(ProgressLine(status, 200), "  0% step 0/300");
  status.set_step_seconds(65);
  EXPECT_EQ(ProgressLine(status, 200), "  0% step 0/300  this step 65.0 s, 12 of 50 blobs done");
  status.clear_step_seconds();  // none is in progress, however long ago the last one ended
  status.set_step_age_seconds(65);
  EXPECT_EQ(FormatLongStep(status), "");
}

TEST(ProgressTest, WhileTheDaemonStartsWhatItDoesIsShown) {
  proto::StatusReply status;
  status.set_state("starting");
  status.mutable_start_work();
  EXPECT_EQ(FormatStartWork(status), "");
  EXPECT_EQ(ProgressLine(status, 80), "starting ...");
  status.mutable_start_work()->set_what("tokenizing b\x1bks.txt");
  status.mutable_start_work()->set_seconds(3.25);
  EXPECT_EQ(ProgressLine(status, 80), "starting: tokenizing b?ks.txt, 3.250 s");
  status.mutable_start_work()->set_done_bytes(3 << 20);
  status.mutable_start_work()->set_total_bytes(int64_t{5} << 30);
  EXPECT_EQ(ProgressLine(status, 80), "starting: tokenizing b?ks.txt, 3.0 MiB of 5.0 GiB, 3.250 s");
  EXPECT_EQ(ProgressLine(status, 20), "starting: tokenizing");
}

TEST(ProgressTest, BeforeTheFirstStepTheStateIsShown) {
  proto::StatusReply status;
  status.set_state("serving");
  EXPECT_EQ(ProgressLine(status, 80), "serving ...");
}

TEST(ProgressTest, WhoWaitsForWorkersSaysForHowManyAndUntilWhen) {
  proto::StatusReply status;
  EXPECT_EQ(FormatAwaitedWorkers(status), "");
  status.set_state("waiting_for_workers");
  status.set_start_in_seconds(-1);
  EXPECT_EQ(FormatAwaitedWorkers(status), "none is ready");
  EXPECT_EQ(ProgressLine(status, 80), "waiting for workers: none is ready");
  status.set_workers_expected(3);
  status.add_workers()->set_state("attaching");
  EXPECT_EQ(FormatAwaitedWorkers(status), "0 of 3 expected are ready");
  status.mutable_workers(0)->set_state("idle");
  status.add_workers()->set_state("lost");
  status.set_start_in_seconds(41);
  EXPECT_EQ(FormatAwaitedWorkers(status), "1 of 3 expected are ready; begins with that in 41.0 s");
  status.mutable_workers(1)->set_state("running");
  EXPECT_EQ(FormatAwaitedWorkers(status), "2 of 3 expected are ready; begins with those in 41.0 s");
  status.set_step(105);  // of a run that goes on
  status.set_steps(300);
  EXPECT_EQ(ProgressLine(status, 200),
            " 35% step 105/300  waiting for workers: 2 of 3 expected are ready; begins with those in 41.0 s");
}

TEST(ProgressTest, BeforeASittingHasDoneAStepItsSpeedAndWaitsAreNoNumbers) {
  proto::StatusReply status = Training();  // resumed
  status.set_last_step_seconds(0);
  status.set_tokens_per_second(0);
  status.clear_wait_fraction();
  status.clear_workers();
  status.set_eta_seconds(-1);
  EXPECT_EQ(ProgressLine(status, 60), " 35% step 105/300  loss 2.613  - tok/s  eta -:--  waits -");
}

TEST(ProgressTest, AnEvaluationThatGoesOnIsShown) {
  proto::StatusReply status = Training();
  EXPECT_EQ(FormatEvaluating(status), "");
  status.mutable_evaluating()->set_step(40);
  status.mutable_evaluating()->set_share(0.999);
  status.mutable_evaluating()->set_seconds(3.2);
  EXPECT_EQ(FormatEvaluating(status), "after step 40: 99% of it, 3.200 s");
  EXPECT_THAT(ProgressLine(status, 200), testing::HasSubstr("step 105/300  evaluating, 99%, 3.200 s  loss 2.613"));
  status.mutable_evaluating()->set_step(0);
  EXPECT_EQ(FormatEvaluating(status), "before the first step: 99% of it, 3.200 s");
}

TEST(ProgressTest, WhereUpdatesWaitForTheNormGradientsThatAreInAreCounted) {
  proto::StatusReply status = Training();
  status.set_step_seconds(10.1);
  status.set_blobs(99);
  status.set_blobs_pending(99);
  status.set_blobs_summed(45);
  EXPECT_EQ(FormatLongStep(status), "this step 10.1 s, 0 of 99 blobs done");
  status.set_updates_wait_for_norm(true);
  EXPECT_EQ(FormatLongStep(status),
            "this step 10.1 s, gradients of 45 of 99 blobs are in, whose updates wait for their norm");
  status.set_blobs_pending(90);
  EXPECT_EQ(FormatLongStep(status), "this step 10.1 s, 9 of 99 blobs done");
}

TEST(ProgressTest, AnEtaIsHoursMinutesSecondsOrUnknown) {
  EXPECT_EQ(FormatEta(3909), "1:05:09");
  EXPECT_EQ(FormatEta(59.6), "1:00");
  EXPECT_EQ(FormatEta(86399), "23:59:59");
  EXPECT_EQ(FormatEta(342 * 3600), "14 d 6 h");
  EXPECT_EQ(FormatEta(-1), "-:--");
}

TEST(ProgressTest, SecondsAreShownWithThreeDigitsThatMatter) {
  EXPECT_EQ(FormatSeconds(0.0123), "0.012 s");
  EXPECT_EQ(FormatSeconds(0.3), "0.300 s");
  EXPECT_EQ(FormatSeconds(12.34), "12.3 s");
  EXPECT_EQ(FormatSeconds(125), "2 min 5 s");
  EXPECT_EQ(FormatSeconds(3909), "1 h 5 min");
  EXPECT_EQ(FormatSeconds(342 * 3600), "14 d 6 h");
}

TEST(ProgressTest, ABarIsNeverLongerThanItself) {
  EXPECT_EQ(ProgressBar(0, 0), "[--------------------]");
  EXPECT_EQ(ProgressBar(3, 10), "[######--------------]");
  EXPECT_EQ(ProgressBar(11, 10), "[####################]");
}

TEST(ProgressTest, ControlCharactersArePrintedAsQuestionMarks) {
  EXPECT_EQ(Printable("cpu\033[2J\r\n\x7f"), "cpu?[2J???");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "??2J");  // U+009B, which begins a command too
  EXPECT_EQ(Printable("gr\xc3\xb6\xc3\x9f"
                      "e"),
            "gr\xc3\xb6\xc3\x9f"
            "e");  // letters of other languages stay
}

TEST(ProgressTest, AStepThatWaitsTooLongSaysForWhom) {
  proto::StatusReply status;
  EXPECT_EQ(FormatStepWait(status), "");
  status.mutable_step_wait()->set_cause("compute");
  status.mutable_step_wait()->set_seconds(65);
  status.mutable_step_wait()->add_worker_id(2);
  status.mutable_step_wait()->add_worker_id(3);
  EXPECT_EQ(FormatStepWait(status), "compute, 65.0 s, of workers 2, 3");
  for (int id = 4; id < 20; ++id) status.mutable_step_wait()->add_worker_id(id);
  EXPECT_EQ(FormatStepWait(status), "compute, 65.0 s, of workers 2, 3, 4, 5, 6, 7, 8, 9 and 10 more");
  status.mutable_step_wait()->clear_worker_id();
  status.mutable_step_wait()->set_cause("update");
  EXPECT_EQ(FormatStepWait(status), "update, 65.0 s");
  status.mutable_step_wait()->set_cause("no_worker");
  EXPECT_EQ(FormatStepWait(status), "a worker, 65.0 s");
}

TEST(ProgressTest, AnOrderForWorkersIsShownUntilAllAreThereOrForGoodWhereItFailed) {
  proto::StatusReply status;
  EXPECT_EQ(FormatStartOrder(status), "");
  status.mutable_start_order()->set_number(1);
  status.mutable_start_order()->set_workers(4);
  EXPECT_EQ(FormatStartOrder(status), "4 wanted, being started");
  status.mutable_start_order()->set_is_over(true);
  EXPECT_EQ(FormatStartOrder(status), "");
  status.mutable_start_order()->set_failure("worker 3 ended: exit code 1");
  EXPECT_EQ(FormatStartOrder(status), "the newest order, of 4, failed: worker 3 ended: exit code 1");
}

TEST(ProgressTest, WithoutATerminalALineIsShownEveryFewSecondsByTheGivenClock) {
  absl::Duration now;
  std::FILE* const to = std::tmpfile();
  ASSERT_NE(to, nullptr);
  ProgressPrinter printer(/*quiet=*/false, to, [&now] { return now; });
  int lines = 0;
  const auto show = [&] { return printer.ShowLine([&](int) { return std::to_string(++lines); }); };
  EXPECT_TRUE(show());
  now = absl::Seconds(4.9);
  EXPECT_FALSE(show());
  now = absl::Seconds(5);
  EXPECT_TRUE(show());
  EXPECT_FALSE(show());
  printer.ShowNext();
  EXPECT_TRUE(show());
  std::fclose(to);
}

TEST(ProgressTest, NoWaitIsNothing) { EXPECT_EQ(FormatWaits(proto::StatusReply()), "nothing"); }

}  // namespace
}  // namespace eps::cli
