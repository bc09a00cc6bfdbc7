#include "gpu_worker/plan/stash.h"

#include "gpu_worker/plan/slot_pool.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST(StashTest, WhatCameBackIsAllThatASecondBuildStores) {
  Stash first(1, 3, nullptr);
  for (const size_t made_at : {0, 1, 2}) {
    EXPECT_TRUE(first.Stores(made_at));
    first.NewHostSlot(static_cast<int64_t>(10 + made_at), made_at);
  }
  EXPECT_EQ(first.HostSlot(11), 1);
  EXPECT_EQ(first.reloaded(), (Reloaded{false, true, false}));
  const Stash second(1, 3, &first.reloaded());
  EXPECT_FALSE(second.Stores(0));
  EXPECT_TRUE(second.Stores(1));
  EXPECT_FALSE(second.Stores(2));
}

TEST(StashTest, PlacesOnTheHostAreTakenAgain) {
  Stash stash(1, 4, nullptr);
  EXPECT_EQ(stash.NewHostSlot(10, 0), 0);
  EXPECT_EQ(stash.NewHostSlot(11, 1), 1);
  stash.FreeHostSlot(10);
  stash.FreeHostSlot(10);  // which is there no more
  EXPECT_FALSE(stash.IsOnHost(10));
  EXPECT_TRUE(stash.IsOnHost(11));
  EXPECT_EQ(stash.NewHostSlot(12, 2), 0);
  EXPECT_EQ(stash.NewHostSlot(13, 3), 2);
  EXPECT_EQ(stash.num_host_slots(), 3);
}

TEST(StashTest, WhatNobodyNeedsAgainLeavesTheDeviceAndTheHost) {
  Stash stash(1, 2, nullptr);
  const int slot = stash.slots().Take(10, /*next_use=*/5);
  stash.slots().Pin(slot);
  stash.NewHostSlot(10, 0);
  stash.Leave(10, slot, /*next_use=*/7);
  EXPECT_EQ(stash.slots().Find(10), slot);
  EXPECT_TRUE(stash.IsOnHost(10));
  stash.slots().Pin(slot);
  stash.Leave(10, slot, SlotPool::kNever);
  EXPECT_EQ(stash.slots().Find(10), SlotPool::kNone);
  EXPECT_FALSE(stash.IsOnHost(10));
}

}  // namespace
}  // namespace eps::worker
