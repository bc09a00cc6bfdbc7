#include "common/base/memory_speed.h"

#include <cmath>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// How fast is the machine's affair; that it moves more than nothing, and ends, is ours.
TEST(MemorySpeedTest, IsAFiniteNumberOfBytes) {
  for (const int threads : {1, 3}) {
    const MemorySpeed speed = MeasureMemorySpeed(threads, absl::Milliseconds(1));
    EXPECT_EQ(speed.threads, threads);
    EXPECT_TRUE(std::isfinite(speed.bytes_per_second));
    EXPECT_GT(speed.bytes_per_second, 0);
    EXPECT_EQ(speed.per_thread(), speed.bytes_per_second / threads);
  }
}

TEST(MemorySpeedTest, ManyThreadsShareTheMemoryAndNoneMeasuresItsOwnCache) {
  EXPECT_EQ(MeasureMemorySpeed(1000, absl::Milliseconds(1)).threads, 8);
}

}  // namespace
}  // namespace eps
