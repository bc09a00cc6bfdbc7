#include "common/base/log_limit.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(LogLimitTest, OneIsLoggedASecondWithHowManyThereWere) {
  LogLimit limit;
  const absl::Duration start = absl::Seconds(7);
  EXPECT_EQ(limit.Count(start), 1);
  EXPECT_EQ(limit.Count(start), std::nullopt);
  EXPECT_EQ(limit.Count(start + absl::Milliseconds(999)), std::nullopt);
  EXPECT_EQ(limit.Count(start + absl::Seconds(1)), 4);
  EXPECT_EQ(limit.Count(start + absl::Milliseconds(1999)), std::nullopt);
  EXPECT_EQ(limit.Count(start + absl::Hours(1)), 6);
  EXPECT_EQ(limit.so_far(), 6);
}

TEST(LogLimitTest, OfThreadsThatCountAtOnceOneLogs) {
  LogLimit limit;
  std::atomic<int> logged = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) logged += limit.Count(absl::ZeroDuration()).has_value() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(logged, 1);
  EXPECT_EQ(limit.so_far(), 4000);
}

}  // namespace
}  // namespace eps
