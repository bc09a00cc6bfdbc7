#include "gpu_worker/plan/slot_pool.h"

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST(SlotPoolTest, TheEmptySlotThatWasFreedLongestAgoComesFirst) {
  SlotPool pool(3);
  EXPECT_EQ(pool.Take(10, 1), 0);
  EXPECT_EQ(pool.Take(11, 1), 1);
  pool.Free(0);
  EXPECT_EQ(pool.Find(10), SlotPool::kNone);
  EXPECT_EQ(pool.Take(12, 1), 2);
  EXPECT_EQ(pool.num_empty(), 1);
  EXPECT_EQ(pool.Take(13, 1), 0);
  EXPECT_EQ(pool.num_empty(), 0);
}

TEST(SlotPoolTest, TheValueThatIsNeededLastLeaves) {
  SlotPool pool(3);
  pool.Take(10, 7);
  pool.Take(11, 9);
  pool.Take(12, 8);
  EXPECT_EQ(pool.Take(13, 20), 1);
  EXPECT_EQ(pool.Find(11), SlotPool::kNone);
  EXPECT_EQ(pool.Find(10), 0);
  pool.SetNextUse(0, 30);
  EXPECT_EQ(pool.Take(14, 1), 0);
}

TEST(SlotPoolTest, WhatIsNeededSoonerIsNotMadeToLeaveWhereThatIsAsked) {
  SlotPool pool(2);
  pool.Take(10, 5);
  pool.Take(11, 6);
  EXPECT_EQ(pool.TryTake(12, 6), SlotPool::kNone);
  EXPECT_EQ(pool.TryTake(12, 5), 1);
  EXPECT_EQ(pool.Find(11), SlotPool::kNone);
}

TEST(SlotPoolTest, WhatIsPinnedStaysUntilEveryPinIsGone) {
  SlotPool pool(2);
  pool.Take(10, 5);
  pool.Take(11, 50);
  pool.Pin(1);
  pool.Pin(1);
  EXPECT_EQ(pool.TryTake(12, 7), SlotPool::kNone);
  EXPECT_EQ(pool.Take(12, 7), 0);
  pool.Unpin(1);
  pool.SetNextUse(1, 60);
  EXPECT_EQ(pool.Take(13, 8), 0);
  pool.Unpin(1);
  EXPECT_EQ(pool.Take(14, 8), 1);
}

}  // namespace
}  // namespace eps::worker
