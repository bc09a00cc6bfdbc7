#include "eps_server/memory/room_check.h"

#include <string>

#include "absl/status/status.h"
#include "common/base/memory_room.h"
#include "common/testing/status_matchers.h"
#include "eps_server/memory/daemon_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

constexpr int64_t kGib = int64_t{1} << 30;

// 8 GiB that are surely written to, 9 in all.
constexpr DaemonMemory kMemory = {.store = {.wire_bytes = 6 * kGib},
                                  .contribution_window_bytes = kGib / 2,
                                  .hold_bytes = 2 * kGib,
                                  .constant_bytes = kGib / 2};

const MemoryRoom kRoom = {.total_bytes = 64 * kGib, .available_bytes = 48 * kGib};

std::string LogOf(const DaemonMemory& memory, const MemoryRoom& room) {
  CaptureStderr();
  EXPECT_OK(CheckRoom(memory, room));
  return GetCapturedStderr();
}

TEST(RoomCheckTest, WhatFitsIsTakenWithoutAWord) {
  EXPECT_EQ(LogOf(kMemory, kRoom), "");
  EXPECT_EQ(LogOf(kMemory, MemoryRoom()), "") << "of which nothing is known";
}

TEST(RoomCheckTest, WhatAControlGroupNeverAllowsIsRefusedWithBothFigures) {
  MemoryRoom room = kRoom;
  room.smallest_limit_bytes = 8 * kGib - 1;
  room.group_room_bytes = room.available_bytes = 7 * kGib;
  room.smallest_limit_file = "/sys/fs/cgroup/a/memory.max";
  EXPECT_THAT(CheckRoom(kMemory, room),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "the daemon needs at least 9663676416 bytes (9.0 GiB) of this host's memory, which `eps plan` "
                       "explains: its control group allows 8.0 GiB (/sys/fs/cgroup/a/memory.max)"));
  room.smallest_limit_bytes = 8 * kGib;  // bounds need not be reached
  EXPECT_THAT(LogOf(kMemory, room),
              HasSubstr(" WARNING memory_is_short needed_bytes=9663676416 available_bytes=7516192768\n"));
}

TEST(RoomCheckTest, WithSwapAControlGroupAllowsMore) {
  MemoryRoom room = kRoom;
  room.smallest_limit_bytes = room.available_bytes = 7 * kGib;
  room.smallest_limit_file = "/sys/fs/cgroup/a/memory.max";
  room.swap_bytes = kGib;
  EXPECT_THAT(LogOf(kMemory, room), HasSubstr(" WARNING memory_is_short "));
  room.swap_bytes = kGib - 1;
  EXPECT_THAT(CheckRoom(kMemory, room),
              StatusIs(absl::StatusCode::kResourceExhausted, "a/memory.max), beside 1.0 GiB of swap"));
}

TEST(RoomCheckTest, AMachineMayGrow) {
  const MemoryRoom room = {.total_bytes = 7 * kGib, .available_bytes = 7 * kGib};
  EXPECT_THAT(LogOf(kMemory, room), HasSubstr(" WARNING memory_is_short "));
}

}  // namespace
}  // namespace eps::server
