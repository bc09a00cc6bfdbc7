#include "gpu_worker/relay/overlap.h"

#include <chrono>
#include <vector>

#include "gpu_worker/device/device.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TimeSpan Span(int begin_ms, int end_ms) {
  using Time = std::chrono::steady_clock::time_point;
  return {Time(std::chrono::milliseconds(begin_ms)), Time(std::chrono::milliseconds(end_ms))};
}

TEST(OverlapTest, CountsWhatBothHave) {
  const std::vector<TimeSpan> some = {Span(0, 100), Span(200, 230)};
  const std::vector<TimeSpan> others = {Span(10, 20), Span(90, 210), Span(220, 300)};
  EXPECT_NEAR(OverlapSeconds(some, others), 0.010 + 0.010 + 0.010 + 0.010, 1e-9);
  EXPECT_NEAR(OverlapSeconds(others, some), 0.040, 1e-9);
}

TEST(OverlapTest, NothingOverlapsNothing) {
  EXPECT_EQ(OverlapSeconds({}, {Span(0, 100)}), 0);
  EXPECT_EQ(OverlapSeconds({Span(0, 100)}, {Span(100, 200)}), 0);
  EXPECT_EQ(OverlapSeconds({Span(5, 5)}, {Span(0, 10)}), 0);
}

}  // namespace
}  // namespace eps::worker
