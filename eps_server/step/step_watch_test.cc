#include "eps_server/step/step_watch.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(StepWatchTest, ReportsAWaitOnceAndThenWithGrowingIntervals) {
  StepWatch watch;
  watch.OnStepDone(absl::Seconds(1));
  watch.OnProgress(absl::Seconds(100));
  EXPECT_FALSE(watch.IsDue(absl::Seconds(109)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(110)));
  EXPECT_FALSE(watch.IsDue(absl::Seconds(111)));
  EXPECT_FALSE(watch.IsDue(absl::Seconds(119)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(120)));
  EXPECT_FALSE(watch.IsDue(absl::Seconds(139)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(140)));
  EXPECT_EQ(watch.Waited(absl::Seconds(140)), absl::Seconds(40));
}

TEST(StepWatchTest, LongStepsWaitForFiveOfTheirMedian) {
  StepWatch watch;
  for (const int seconds : {4, 100, 3, 5, 4}) watch.OnStepDone(absl::Seconds(seconds));
  watch.OnProgress(absl::ZeroDuration());
  EXPECT_FALSE(watch.IsDue(absl::Seconds(19)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(20)));
}

TEST(StepWatchTest, TheFirstStepMayTakeAMinute) {
  StepWatch watch;
  watch.OnProgress(absl::ZeroDuration());
  EXPECT_FALSE(watch.IsDue(absl::Seconds(59)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(60)));
}

TEST(StepWatchTest, TheFirstStepMayTakeFiveTimesWhatThePlanSays) {
  StepWatch watch;
  watch.Expect(absl::Seconds(100));
  watch.OnProgress(absl::ZeroDuration());
  EXPECT_FALSE(watch.IsDue(absl::Seconds(499)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(500)));
  // What was measured says more, and a short plan does not make the first step suspicious.
  watch.OnStepDone(absl::Seconds(4));
  watch.OnProgress(absl::Seconds(500));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(520)));
  StepWatch brief;
  brief.Expect(absl::Seconds(1));
  brief.OnProgress(absl::ZeroDuration());
  EXPECT_FALSE(brief.IsDue(absl::Seconds(59)));
}

TEST(StepWatchTest, IsLateFromTheFirstReportUntilThereIsProgress) {
  StepWatch watch;
  watch.OnStepDone(absl::Seconds(1));
  watch.OnProgress(absl::ZeroDuration());
  EXPECT_FALSE(watch.IsLate(absl::Seconds(9)));
  EXPECT_TRUE(watch.IsLate(absl::Seconds(10)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(12)));
  EXPECT_TRUE(watch.IsLate(absl::Seconds(13)));  // though the next report is not due for long
  watch.OnStepDone(absl::Seconds(100));
  watch.OnProgress(absl::Seconds(14));
  EXPECT_FALSE(watch.IsLate(absl::Seconds(14)));
}

TEST(StepWatchTest, ProgressStartsAnew) {
  StepWatch watch;
  watch.OnStepDone(absl::Seconds(1));
  watch.OnProgress(absl::ZeroDuration());
  EXPECT_TRUE(watch.IsDue(absl::Seconds(10)));
  watch.OnProgress(absl::Seconds(15));
  EXPECT_FALSE(watch.IsDue(absl::Seconds(24)));
  EXPECT_TRUE(watch.IsDue(absl::Seconds(25)));
}

}  // namespace
}  // namespace eps::server
