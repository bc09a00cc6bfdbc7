#include "common/base/memory_room.h"

#include <map>
#include <optional>
#include <string>

#include "common/base/control_groups.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

class MemoryRoomTest : public ::testing::Test {
 protected:
  MemoryRoom Find() const { return FindMemoryRoom(reader_); }

  std::map<std::string, std::string> files_ = {
      {"/proc/meminfo", "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:   50331648 kB\n"},
      {"/proc/self/cgroup", "12:memory:/old\n0::/a/b\n"}};
  const TextReader reader_ = [this](const std::string& path) {
    const auto it = files_.find(path);
    return it == files_.end() ? std::nullopt : std::optional(it->second);
  };
};

TEST_F(MemoryRoomTest, WithoutALimitItIsWhatTheMachineCanGive) {
  files_["/sys/fs/cgroup/a/b/memory.max"] = "max\n";
  const MemoryRoom room = Find();
  EXPECT_EQ(room.total_bytes, 64 * kGib);
  EXPECT_EQ(room.available_bytes, 48 * kGib);
  EXPECT_FALSE(room.limited_by_group);
  EXPECT_EQ(room.group_limit_bytes, MemoryRoom::kNoLimit);
}

TEST_F(MemoryRoomTest, TheTightestOfAllGroupsAroundTheProcessBoundsIt) {
  files_["/sys/fs/cgroup/a/b/memory.max"] = "21474836480\n";
  files_["/sys/fs/cgroup/a/memory.max"] = "8589934592\n";
  files_["/sys/fs/cgroup/a/memory.current"] = "1073741824\n";
  files_["/sys/fs/cgroup/memory.max"] = "34359738368\n";
  EXPECT_EQ(Find().available_bytes, 7 * kGib);
  EXPECT_TRUE(Find().limited_by_group);
  EXPECT_EQ(Find().group_limit_bytes, 8 * kGib);
  EXPECT_EQ(Find().group_file, "/sys/fs/cgroup/a/memory.max");
  files_["/sys/fs/cgroup/a/memory.current"] = "9000000000\n";  // above it while it is being reclaimed
  EXPECT_EQ(Find().available_bytes, 0);
}

TEST_F(MemoryRoomTest, WhatLeavesLeastNowNeedNotAllowLeast) {
  files_["/sys/fs/cgroup/a/b/memory.max"] = "8589934592\n";
  files_["/sys/fs/cgroup/a/memory.max"] = "34359738368\n";
  files_["/sys/fs/cgroup/a/memory.current"] = "32212254720\n";
  EXPECT_EQ(Find().available_bytes, 2 * kGib);
  EXPECT_EQ(Find().group_limit_bytes, 32 * kGib);
  EXPECT_EQ(Find().smallest_limit_bytes, 8 * kGib);
  EXPECT_EQ(MostMemoryText(Find()), "its control group allows 8.0 GiB (/sys/fs/cgroup/a/b/memory.max)");
}

TEST_F(MemoryRoomTest, FilesThatAGroupHoldsInMemoryCountAsFree) {
  files_["/sys/fs/cgroup/a/memory.max"] = "8589934592\n";
  files_["/sys/fs/cgroup/a/memory.current"] = "8589934592\n";
  files_["/sys/fs/cgroup/a/memory.stat"] =
      "anon 1073741824\nfile 7516192768\ninactive_file 5368709120\nactive_file "
      "1073741824\n";
  EXPECT_EQ(Find().available_bytes, 6 * kGib);
  files_["/sys/fs/cgroup/a/memory.current"] = "1\n";  // read a moment later
  EXPECT_EQ(Find().available_bytes, 8 * kGib);
}

TEST_F(MemoryRoomTest, GroupsOfTheFirstVersionHaveOtherFiles) {
  files_["/sys/fs/cgroup/memory/old/memory.limit_in_bytes"] = "9223372036854771712\n";  // none
  EXPECT_EQ(Find().group_limit_bytes, MemoryRoom::kNoLimit);
  files_["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "8589934592\n";
  files_["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = "4294967296\n";
  files_["/sys/fs/cgroup/memory/memory.stat"] =
      "inactive_file 1\nactive_file 1\ntotal_inactive_file 2147483648\ntotal_active_file 1073741824\n";
  EXPECT_EQ(Find().available_bytes, 7 * kGib);
  EXPECT_EQ(Find().group_limit_bytes, 8 * kGib);
  EXPECT_EQ(Find().group_file, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

TEST_F(MemoryRoomTest, SwapIsBesideIt) {
  EXPECT_EQ(Find().swap_bytes, 0);
  files_["/proc/meminfo"] += "SwapCached: 7 kB\nSwapTotal:       1048576 kB\n";
  EXPECT_EQ(Find().swap_bytes, kGib);
  EXPECT_EQ(Find().available_bytes, 48 * kGib);
}

TEST_F(MemoryRoomTest, PeopleAreToldWhatBoundsIt) {
  EXPECT_EQ(MostMemoryText(Find()), "this machine has 64.0 GiB");
  files_["/sys/fs/cgroup/a/memory.max"] = "8589934592\n";
  EXPECT_EQ(MostMemoryText(Find()), "its control group allows 8.0 GiB (/sys/fs/cgroup/a/memory.max)");
}

TEST_F(MemoryRoomTest, WhatCannotBeReadIsNotKnown) {
  files_.clear();
  EXPECT_EQ(Find().total_bytes, 0);
  EXPECT_EQ(DefaultDeviceMemoryBytes(Find(), 1), 0);
  EXPECT_EQ(MostMemoryText(Find()), "");
}

TEST_F(MemoryRoomTest, WorkersTogetherPlanForHalfOfIt) {
  EXPECT_EQ(DefaultDeviceMemoryBytes(Find(), 1), 24 * kGib);
  EXPECT_EQ(DefaultDeviceMemoryBytes(Find(), 6), 4 * kGib);
  files_["/sys/fs/cgroup/a/memory.max"] = "0\n";
  EXPECT_EQ(DefaultDeviceMemoryBytes(Find(), 2), 1);  // a cap, and none that fits anything: 0 would be "none given"
}

TEST(ThisMemoryRoomTest, ThisMachineHasMemory) {
  EXPECT_GT(FindMemoryRoom().total_bytes, 0);
  EXPECT_LE(FindMemoryRoom().available_bytes, FindMemoryRoom().total_bytes);
}

}  // namespace
}  // namespace eps
