#include "gpu_worker/relay/pull_clock.h"

#include "gpu_worker/device/device.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

PullClock::Time At(int milliseconds) { return PullClock::Time(std::chrono::milliseconds(milliseconds)); }

TEST(PullClockTest, CountsVersionsOnlyWhileComputeWaits) {
  PullClock clock;
  clock.Start();
  // Asked at 0, version there at 100, all there at 150; compute came at 60. The next one it never waited for.
  clock.Pulled(At(0), 0.100, At(150));
  clock.Pulled(At(150), 0.050, At(210));
  EXPECT_NEAR(clock.VersionWaitSeconds({{At(60), At(150)}, {At(300), At(300)}}), 0.040, 1e-9);
  EXPECT_EQ(clock.VersionWaitSeconds({}), 0);
}

TEST(PullClockTest, AnEarlierPullsVersionHoldsUpALaterPull) {
  PullClock clock;
  clock.Start();
  clock.Pulled(At(0), 0.100, At(100));
  clock.Pulled(At(100), 0, At(120));
  EXPECT_NEAR(clock.VersionWaitSeconds({{At(20), At(120)}}), 0.080, 1e-9);  // for the second alone
}

TEST(PullClockTest, APullOfSeveralBlobsWaitsForEachVersion) {
  PullClock clock;
  clock.Start();
  clock.Pulled(At(0), 0.010, At(20));
  clock.Pulled(At(20), 0.030, At(60));
  EXPECT_NEAR(clock.VersionWaitSeconds({{At(0), At(60)}}), 0.040, 1e-9);
}

TEST(PullClockTest, SeveralWaitsMayLieInOneVersionWaitAndTheOtherWayRound) {
  PullClock clock;
  clock.Start();
  clock.Pulled(At(0), 0.100, At(100));
  clock.Pulled(At(100), 0.010, At(115));
  clock.Pulled(At(120), 0.010, At(140));
  EXPECT_NEAR(clock.VersionWaitSeconds({{At(10), At(20)}, {At(30), At(40)}, {At(90), At(200)}}), 0.050, 1e-9);
}

TEST(PullClockTest, AVersionWaitEndsWithItsPull) {
  PullClock clock;
  clock.Start();
  clock.Pulled(At(0), 5.0, At(50));
  EXPECT_NEAR(clock.VersionWaitSeconds({{At(0), At(100)}}), 0.050, 1e-9);
}

TEST(PullClockTest, StartForgets) {
  PullClock clock;
  clock.Start();
  clock.Pulled(At(0), 0.010, At(20));
  clock.Start();
  EXPECT_EQ(clock.VersionWaitSeconds({{At(0), At(20)}}), 0);
}

}  // namespace
}  // namespace eps::worker
