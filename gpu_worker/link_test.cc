#include "gpu_worker/link.h"

#include <cstddef>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/chunk_range.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/fake_control.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Knows with what it was cancelled.
class TransportThatIsCancelled final : public Transport {
 public:
  absl::StatusOr<PullTiming> Pull(BlobId, Version, ChunkRange, absl::Span<std::byte>) override { return cancelled; }
  void Push(Contribution) override {}
  absl::Status Flush() override { return cancelled; }
  void Cancel(absl::Status reason) override { cancelled = std::move(reason); }

  absl::Status cancelled;
};

class LinkTest : public ::testing::Test {
 protected:
  SaidToDaemon said_;
  FakeControl control_{&said_, {}};
  TransportThatIsCancelled transport_;
  Link link_;
};

TEST_F(LinkTest, WhatBreaksOneConnectionCancelsBothAndTheFirstErrorStands) {
  link_.Watch(&transport_, &control_);
  EXPECT_OK(link_.failure());
  link_.ControlFailed(absl::UnavailableError("the daemon is gone"));
  link_.TransportFailed(absl::DataLossError("half a chunk"));
  EXPECT_EQ(link_.failure(), absl::UnavailableError("the daemon is gone"));
  EXPECT_EQ(transport_.cancelled, absl::UnavailableError("the daemon is gone"));
  EXPECT_THAT(said_.All(), ElementsAre("cancelled: UNAVAILABLE: the daemon is gone"));
}

TEST_F(LinkTest, ADaemonIsToldWhyAWorkerGivesItsDataPlaneUpForGood) {
  link_.Watch(&transport_, &control_);
  link_.TransportFailed(absl::DataLossError("half a chunk"));
  EXPECT_THAT(said_.All(), ElementsAre("failed: DATA_LOSS: half a chunk", "cancelled: DATA_LOSS: half a chunk"));
}

TEST_F(LinkTest, ADaemonThatTheWorkerComesBackToIsToldNothing) {
  link_.Watch(&transport_, &control_);
  link_.TransportFailed(absl::AbortedError("another assignment"));
  EXPECT_THAT(said_.All(), ElementsAre("cancelled: ABORTED: another assignment"));
}

TEST_F(LinkTest, WhatIsWatchedAfterTheFailureIsCancelledAtOnceAndOnce) {
  link_.Watch(nullptr, &control_);
  link_.ControlFailed(absl::UnavailableError("the daemon is gone"));
  ASSERT_EQ(said_.All().size(), 1u);
  link_.Watch(&transport_, &control_);
  EXPECT_EQ(transport_.cancelled, absl::UnavailableError("the daemon is gone"));
  EXPECT_EQ(said_.All().size(), 1u);  // its last word, if it has one, may still be on its way
}

TEST_F(LinkTest, WhatIsNotWatchedAnyMoreIsLeftAlone) {
  link_.Watch(&transport_, &control_);
  link_.Unwatch();
  link_.TransportFailed(absl::InternalError("bug"));
  EXPECT_OK(transport_.cancelled);
  EXPECT_THAT(said_.All(), IsEmpty());
}

TEST_F(LinkTest, AFailureThatComesALittleLaterIsWaitedFor) {
  std::thread other([this] { link_.ControlFailed(absl::UnavailableError("the daemon is gone")); });
  EXPECT_EQ(link_.AwaitFailure(absl::Seconds(60)), absl::UnavailableError("the daemon is gone"));
  other.join();
  Link sound;
  EXPECT_OK(sound.AwaitFailure(absl::Milliseconds(1)));
}

TEST(MayAttachAnewTest, OnlyOfADaemonThatIsAwayOrHasGivenThisWorkerUp) {
  for (const absl::Status& away : {absl::UnavailableError(""), absl::DeadlineExceededError(""), absl::AbortedError(""),
                                   absl::CancelledError(""), absl::NotFoundError("")}) {
    EXPECT_TRUE(MayAttachAnew(away)) << away;
  }
  for (const absl::Status& over : {absl::OkStatus(), absl::FailedPreconditionError(""), absl::DataLossError(""),
                                   absl::InternalError(""), absl::InvalidArgumentError("")}) {
    EXPECT_FALSE(MayAttachAnew(over)) << over;
  }
}

}  // namespace
}  // namespace eps::worker
