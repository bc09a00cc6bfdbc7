#include "common/base/memory_speed.h"

#include <cmath>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// How fast is the machine's affair; that it moves more than nothing, and ends, is ours.
TEST(MemorySpeedTest, IsAFiniteNumberOfBytes) {
  for (const int threads : {1, 3}) {
    const double speed = MeasureMemoryBytesPerSecond(threads, 1 << 20, absl::Milliseconds(1));
    EXPECT_TRUE(std::isfinite(speed));
    EXPECT_GT(speed, 0);
  }
}

}  // namespace
}  // namespace eps
