#include "cli/worker_replacements.h"

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

proto::StatusReply At(const std::string& state, int64_t step = 3) {
  proto::StatusReply status;
  status.set_state(state);
  status.set_step(step);
  status.set_steps(10);
  return status;
}

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr absl::Duration kPause = WorkerReplacements::kPause;

TEST(WorkerReplacementsTest, OneForEachCrashUntilTheBudgetIsUsed) {
  WorkerReplacements replacements(2);
  EXPECT_FALSE(replacements.TakeOne(kNow));
  for (int crash = 0; crash < 3; ++crash) {
    replacements.OnCrash();
    replacements.OnAnswer(At(crash == 0 ? "training" : "waiting_for_workers"));
    EXPECT_EQ(replacements.TakeOne(kNow + crash * kPause), crash < 2) << crash;
    EXPECT_FALSE(replacements.is_pending());
  }
  EXPECT_EQ(replacements.num_left(), 0);
}

TEST(WorkerReplacementsTest, OneAfterTheOtherWithAPause) {
  WorkerReplacements replacements(5);
  replacements.OnCrash();
  replacements.OnCrash();
  replacements.OnAnswer(At("training"));
  EXPECT_TRUE(replacements.TakeOne(kNow));
  EXPECT_FALSE(replacements.TakeOne(kNow + kPause / 2));
  EXPECT_TRUE(replacements.is_pending());
  EXPECT_TRUE(replacements.TakeOne(kNow + kPause));
  EXPECT_EQ(replacements.num_left(), 3);
}

TEST(WorkerReplacementsTest, WhatTheDaemonSaidBeforeTheCrashDoesNotCount) {
  WorkerReplacements replacements(5);
  replacements.OnAnswer(At("training"));
  replacements.OnCrash();
  EXPECT_FALSE(replacements.TakeOne(kNow));
  replacements.OnAnswer(absl::UnavailableError("busy"));
  EXPECT_FALSE(replacements.TakeOne(kNow));
  EXPECT_TRUE(replacements.is_pending());
  replacements.OnAnswer(At("training"));
  EXPECT_TRUE(replacements.TakeOne(kNow));
}

TEST(WorkerReplacementsTest, NobodyIsReplacedInARunThatEndsOrInADaemonThatHangs) {
  for (const char* state : {"failed", "finishing", "finished", "serving"}) {
    WorkerReplacements replacements(5);
    replacements.OnCrash();
    replacements.OnAnswer(At(state, 10));
    EXPECT_FALSE(replacements.is_pending()) << state;
    EXPECT_FALSE(replacements.run_is_being_stopped()) << state;
    EXPECT_EQ(replacements.num_left(), 5) << state;
  }
  WorkerReplacements of_daemon_that_hangs(5);
  of_daemon_that_hangs.OnCrash();
  for (int i = 0; i < WorkerReplacements::kMostUnanswered; ++i) {
    EXPECT_TRUE(of_daemon_that_hangs.is_pending());
    of_daemon_that_hangs.OnAnswer(absl::DeadlineExceededError("no answer"));
  }
  EXPECT_FALSE(of_daemon_that_hangs.is_pending());
  WorkerReplacements stopped(5);
  stopped.OnCrash();
  stopped.Stop();
  stopped.OnCrash();
  stopped.OnAnswer(At("training"));
  EXPECT_FALSE(stopped.TakeOne(kNow));
}

TEST(WorkerReplacementsTest, ARunThatIsStoppedEarlyStaysSo) {
  WorkerReplacements replacements(5);
  replacements.OnAnswer(At("finishing", 9));  // its last step
  EXPECT_FALSE(replacements.run_is_being_stopped());
  replacements.OnAnswer(At("finishing", 3));
  EXPECT_TRUE(replacements.run_is_being_stopped());
  replacements.OnCrash();
  replacements.OnAnswer(At("waiting_for_workers"));
  EXPECT_FALSE(replacements.TakeOne(kNow));
}

}  // namespace
}  // namespace eps::cli
