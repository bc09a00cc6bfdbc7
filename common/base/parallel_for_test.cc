#include "common/base/parallel_for.h"

#include <atomic>
#include <vector>

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

}  // namespace
}  // namespace eps
