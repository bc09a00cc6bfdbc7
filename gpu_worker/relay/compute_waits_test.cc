#include "gpu_worker/relay/compute_waits.h"

#include <chrono>
#include <cstddef>
#include <vector>

#include "gpu_worker/device/stream.h"
#include "gpu_worker/device/stream_id.h"
#include "gpu_worker/relay/pull_clock.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

class ComputeWaitsTest : public ::testing::Test {
 protected:
  static PullClock::Time At(int ms) { return PullClock::Time(std::chrono::milliseconds(ms)); }
  void Waited(WaitCause cause, int begin_ms, int end_ms) {
    compute_.waits[static_cast<size_t>(cause)].push_back({At(begin_ms), At(end_ms)});
    compute_.wait_seconds[static_cast<size_t>(cause)] += (end_ms - begin_ms) / 1000.0;
  }
  double Seconds(WaitCause cause) const {
    return ComputeWaits(compute_, pulls_, room_waits_, {At(1000), At(1100)})[static_cast<size_t>(cause)];
  }

  StreamStats compute_;
  PullClock pulls_;
  std::vector<TimeSpan> room_waits_;
};

TEST_F(ComputeWaitsTest, WhatTheDaemonHadNotMadeIsNoWaitForThePull) {
  pulls_.Pulled(At(0), 0.100, At(150));
  Waited(WaitCause::kPull, 60, 150);
  EXPECT_NEAR(Seconds(WaitCause::kVersion), 0.040, 1e-9);
  EXPECT_NEAR(Seconds(WaitCause::kPull), 0.050, 1e-9);
}

TEST_F(ComputeWaitsTest, WhatWaitsBehindAGradientWithoutRoomWaitsForRoom) {
  room_waits_ = {{At(100), At(200)}};
  Waited(WaitCause::kPush, 150, 260);
  Waited(WaitCause::kStash, 80, 110);
  EXPECT_NEAR(Seconds(WaitCause::kPush), 0.060, 1e-9);
  EXPECT_NEAR(Seconds(WaitCause::kStash), 0.020, 1e-9);
  EXPECT_NEAR(Seconds(WaitCause::kRoom), 0.060, 1e-9);
}

TEST_F(ComputeWaitsTest, RoomIsWaitedForWhenAllIsComputedToo) {
  room_waits_ = {{At(990), At(1030)}, {At(1090), At(1200)}};
  EXPECT_NEAR(Seconds(WaitCause::kRoom), 0.040, 1e-9);
}

// Of a device whose clock is up to a millisecond off.
TEST_F(ComputeWaitsTest, NoCauseIsLessThanNothing) {
  room_waits_ = {{At(0), At(500)}};
  Waited(WaitCause::kPush, 100, 110);
  compute_.wait_seconds[static_cast<size_t>(WaitCause::kPush)] = 0.009;
  EXPECT_EQ(Seconds(WaitCause::kPush), 0);
  EXPECT_NEAR(Seconds(WaitCause::kRoom), 0.009, 1e-9);
}

}  // namespace
}  // namespace eps::worker
