#include "eps_server/bounded_end.h"

#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(BoundedEndTest, NothingHappensToWhoEndsByItself) {
  auto end = std::make_unique<BoundedEnd>(75, absl::Hours(1));
  end.reset();
}

TEST(BoundedEndDeathTest, WhoDoesNotIsEndedWithTheSameCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const BoundedEnd end(75, absl::Milliseconds(10));
        absl::SleepFor(absl::InfiniteDuration());
      },
      ::testing::ExitedWithCode(75), "ended_with_work_under_way");
}

}  // namespace
}  // namespace eps::server
