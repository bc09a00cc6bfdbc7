#include "eps_server/optimizer/update_hold.h"

#include <chrono>
#include <optional>

#include "common/base/ids.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr BlobId kA(0), kB(1);
constexpr Version kFirst(3), kSecond(4);

UpdateHold::TimePoint At(int seconds) { return UpdateHold::TimePoint(std::chrono::seconds(seconds)); }

TEST(UpdateHoldTest, ABlobIsHeldAtAVersionUntilItIsReleased) {
  UpdateHold hold;
  hold.Hold(kA, kFirst);
  hold.Hold(kA, kSecond);
  EXPECT_TRUE(hold.IsHeld(kA, kFirst));
  EXPECT_FALSE(hold.IsHeld(kB, kFirst));
  EXPECT_TRUE(hold.Release(kA, kFirst));
  EXPECT_FALSE(hold.Release(kA, kFirst));
  EXPECT_FALSE(hold.IsHeld(kA, kFirst));
  EXPECT_TRUE(hold.IsHeld(kA, kSecond));
}

TEST(UpdateHoldTest, AWaitIsFromTheFirstThatWaitsToTheLastThatGoesOn) {
  UpdateHold hold;
  EXPECT_FALSE(hold.EndWait(kA, At(1)).has_value()) << "it did not wait";
  hold.BeginWait(kA, At(2));
  hold.BeginWait(kB, At(3));
  hold.BeginWait(kA, At(4));  // another chunk of it
  EXPECT_FALSE(hold.EndWait(kA, At(5)).has_value());
  const std::optional<UpdateHold::Wait> wait = hold.EndWait(kB, At(7));
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->seconds(), 5);
}

}  // namespace
}  // namespace eps::server
