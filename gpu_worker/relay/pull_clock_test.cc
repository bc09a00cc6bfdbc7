#include "gpu_worker/relay/pull_clock.h"

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

PullClock::Time At(int milliseconds) { return PullClock::Time(std::chrono::milliseconds(milliseconds)); }

TEST(PullClockTest, CountsVersionsOnlyWhileComputeWaits) {
  PullClock clock;
  clock.Start(2);
  // Asked at 0, version there at 100, all there at 150; compute came at 60.
  clock.Pulled(0, At(0), 0.100, At(150));
  clock.Arrived(0, At(60));
  // Never waited for: compute came after it.
  clock.Pulled(1, At(150), 0.050, At(210));
  clock.Arrived(1, At(300));
  EXPECT_NEAR(clock.VersionWaitSeconds(), 0.040, 1e-9);
}

TEST(PullClockTest, AnEarlierPullsVersionHoldsUpALaterPull) {
  PullClock clock;
  clock.Start(2);
  clock.Pulled(0, At(0), 0.100, At(100));
  clock.Pulled(1, At(100), 0, At(120));
  clock.Arrived(1, At(20));  // waits for pull 1 alone, from 20 to 120
  EXPECT_NEAR(clock.VersionWaitSeconds(), 0.080, 1e-9);
}

TEST(PullClockTest, APullOfSeveralBlobsWaitsForEachVersion) {
  PullClock clock;
  clock.Start(1);
  clock.Arrived(0, At(0));
  clock.Pulled(0, At(0), 0.010, At(20));
  clock.Pulled(0, At(20), 0.030, At(60));
  EXPECT_NEAR(clock.VersionWaitSeconds(), 0.040, 1e-9);
}

TEST(PullClockTest, StartForgets) {
  PullClock clock;
  clock.Start(1);
  clock.Arrived(0, At(0));
  clock.Pulled(0, At(0), 0.010, At(20));
  clock.Start(1);
  EXPECT_EQ(clock.VersionWaitSeconds(), 0);
}

}  // namespace
}  // namespace eps::worker
