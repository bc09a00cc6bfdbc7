#include "common/base/parallel_for.h"

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/control_groups.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ParallelForTest, EachIsDoneOnceBeforeItReturns) {
  for (const size_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> done(count);
    ParallelFor(count, [&](size_t i) { ++done[i]; });
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(done[i], 1) << i << " of " << count;
  }
}

TEST(ParallelForTest, HowManyAreDoneIsToldInOrder) {
  std::vector<size_t> told;
  ParallelFor(
      100, [](size_t) {}, [&](size_t done) { told.push_back(done); });
  ASSERT_EQ(told.size(), 100u);
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], i + 1);
}

TEST(ParallelForTest, WhereThereAreCoresSeveralAreUnderWayAtOnce) {
  if (UsableCores() < 2) GTEST_SKIP() << "one core";
  absl::Notification first, second;
  const auto meets = [](absl::Notification& here, absl::Notification& there) {
    here.Notify();
    return there.WaitForNotificationWithTimeout(absl::Seconds(60));
  };
  std::atomic<int> met = 0;
  ParallelFor(2, [&](size_t i) { met += (i == 0 ? meets(first, second) : meets(second, first)) ? 1 : 0; });
  EXPECT_EQ(met, 2);
}

}  // namespace
}  // namespace eps
