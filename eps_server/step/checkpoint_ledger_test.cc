#include "eps_server/step/checkpoint_ledger.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr Version kOne(1), kTwo(2), kThree(3);

class CheckpointLedgerTest : public ::testing::Test {
 protected:
  void Request(const std::string& who) {
    ledger_.Request([this, who](absl::StatusOr<std::string> path) {
      told_.push_back(who + ": " + (path.ok() ? *path : std::string(path.status().message())));
    });
  }
  void Written(Version version, const absl::StatusOr<std::string>& path) {
    ledger_.Begin(version, absl::Seconds(10));
    for (const auto& answer : ledger_.OnWritten(version, path, 700, absl::Seconds(14))) answer(path);
  }
  RunStatus Status() const {
    RunStatus status;
    ledger_.Fill(status, absl::Seconds(20));
    return status;
  }

  CheckpointLedger ledger_{4, Version(0), "", absl::Seconds(5)};
  std::vector<std::string> told_;
};

TEST_F(CheckpointLedgerTest, IsDueByTheIntervalOrOnRequest) {
  EXPECT_FALSE(ledger_.IsDue(kThree));
  EXPECT_TRUE(ledger_.IsDue(Version(4)));
  Request("a");
  EXPECT_TRUE(ledger_.IsDue(kThree));
  const CheckpointLedger never(0, kOne, "", absl::ZeroDuration());
  EXPECT_FALSE(never.IsDue(Version(4)));
}

TEST_F(CheckpointLedgerTest, RequestsAreAnsweredByTheVersionThatIsStartedAfterThem) {
  Request("a");
  ledger_.Start(kOne);
  EXPECT_FALSE(ledger_.IsRequested());
  EXPECT_TRUE(ledger_.IsAwaited(kOne));
  EXPECT_FALSE(ledger_.IsAwaited(kTwo));
  Request("b");  // too late for it
  EXPECT_TRUE(ledger_.IsAwaited(kOne)) << "whose end b waits for too";
  Written(kOne, "one");
  EXPECT_EQ(told_, std::vector<std::string>{"a: one"});
  EXPECT_TRUE(ledger_.IsRequested());
  EXPECT_TRUE(ledger_.IsWritten(kOne));
  EXPECT_TRUE(ledger_.IsStarted(kOne));
  ledger_.Start(kTwo);
  Request("c");
  ledger_.Await(kTwo);  // nothing was updated since
  Written(kTwo, absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(told_, (std::vector<std::string>{"a: one", "b: disk full", "c: disk full"}));
}

TEST_F(CheckpointLedgerTest, AfterAFailureTheOldOneStandsAndTheVersionMayBeTriedAgain) {
  ledger_.Start(kOne);
  EXPECT_FALSE(ledger_.IsAwaited(kOne));
  Written(kOne, "one");
  ledger_.Start(kTwo);
  Written(kTwo, absl::ResourceExhaustedError("disk full"));
  EXPECT_FALSE(ledger_.IsStarted(kTwo));
  EXPECT_TRUE(ledger_.IsWritten(kOne));
  RunStatus status = Status();
  EXPECT_EQ(status.newest_checkpoint, "one");
  EXPECT_EQ(status.checkpoint_step, 1);
  EXPECT_EQ(status.checkpoint_failures, 1);
  EXPECT_EQ(status.checkpoint_error, "disk full");
  EXPECT_EQ(status.checkpoint_write_seconds, 4);
  EXPECT_EQ(status.checkpoint_age_seconds, 6);
  EXPECT_EQ(status.checkpoint_bytes, 700);
  ledger_.Start(kTwo);
  Written(kTwo, "two");
  status = Status();
  EXPECT_EQ(status.newest_checkpoint, "two");
  EXPECT_EQ(status.checkpoint_error, "");
  EXPECT_EQ(status.checkpoints_written, 2);
}

TEST_F(CheckpointLedgerTest, HowLongTheOneBeingWrittenTakesIsKnownUntilItEnds) {
  EXPECT_EQ(Status().checkpoint_writing_seconds, 0);
  ledger_.Start(kOne);
  EXPECT_EQ(Status().checkpoint_writing_seconds, 0);  // its step is not committed yet
  ledger_.Begin(kOne, absl::Seconds(12));
  ledger_.Begin(kTwo, absl::Seconds(15));  // waits for the one before
  EXPECT_EQ(Status().checkpoint_writing_seconds, 8);
  EXPECT_EQ(Status().checkpoint_writing_step, kOne.value());
  EXPECT_TRUE(ledger_.OnWritten(kOne, absl::ResourceExhaustedError("disk full"), 0, absl::Seconds(16)).empty());
  EXPECT_EQ(Status().checkpoint_writing_seconds, 5);
  EXPECT_EQ(Status().checkpoint_writing_step, kTwo.value());
  EXPECT_EQ(ledger_.OnWritten(kTwo, std::string("two"), 700, absl::Seconds(18)).size(), 0u);
  EXPECT_EQ(Status().checkpoint_writing_seconds, 0);
  EXPECT_EQ(Status().checkpoint_writing_step, -1);
  EXPECT_EQ(Status().checkpoint_write_seconds, 3);
}

TEST_F(CheckpointLedgerTest, EverybodyIsTakenAtAnEnd) {
  Request("a");
  ledger_.Start(kOne);
  Request("b");
  EXPECT_EQ(ledger_.TakeAll().size(), 2u);
  EXPECT_FALSE(ledger_.IsRequested());
  EXPECT_TRUE(ledger_.TakeAll().empty());
  Written(kOne, "one");
  EXPECT_TRUE(told_.empty());
}

TEST_F(CheckpointLedgerTest, IsLateOnceThreeQuartersOfTheIntervalHavePassed) {
  EXPECT_FALSE(ledger_.IsLate(Version(4), Version(6)));
  EXPECT_TRUE(ledger_.IsLate(Version(4), Version(7)));
  const CheckpointLedger never(0, kOne, "", absl::ZeroDuration());
  EXPECT_FALSE(never.IsLate(Version(4), Version(99)));
  EXPECT_TRUE(never.IsLate(Version(4), Version(100)));
}

TEST(ResumedCheckpointLedgerTest, WhatWasResumedFromIsOnDisk) {
  const CheckpointLedger ledger(4, kThree, "three", absl::Seconds(5));
  EXPECT_TRUE(ledger.IsWritten(kThree));
  EXPECT_TRUE(ledger.IsStarted(kThree));
  EXPECT_EQ(ledger.newest_path(), "three");
  RunStatus status;
  ledger.Fill(status, absl::Seconds(7));
  EXPECT_EQ(status.checkpoint_step, 3);
  EXPECT_EQ(status.checkpoint_age_seconds, 2);
  EXPECT_EQ(status.checkpoints_written, 0);
}

TEST_F(CheckpointLedgerTest, NothingIsOnDiskBeforeTheFirst) {
  EXPECT_FALSE(ledger_.IsWritten(Version(0)));
  EXPECT_EQ(Status().checkpoint_step, -1);
}

}  // namespace
}  // namespace eps::server
