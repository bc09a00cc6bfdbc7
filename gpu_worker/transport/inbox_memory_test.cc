#include "gpu_worker/transport/inbox_memory.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

constexpr int64_t kStaging = 4096;

std::shared_ptr<InboxMemory> NewInbox(int64_t num_bytes) {
  return std::make_shared<InboxMemory>(
      SharedSegment::Create("test", kStaging + num_bytes, SegmentWriter::kCreator).value(), kStaging);
}

TEST(InboxMemoryTest, TheLowestPlaceThatFitsIsTaken) {
  const auto inbox = NewInbox(1024);
  std::optional<PushMemory> first = inbox->Take(256);
  const std::optional<PushMemory> second = inbox->Take(300);  // takes 320
  EXPECT_EQ(inbox->OffsetOf(first->bytes), kStaging);
  EXPECT_EQ(inbox->OffsetOf(second->bytes), kStaging + 256);
  EXPECT_EQ(second->bytes.size(), 300u);
  first.reset();
  const std::optional<PushMemory> large = inbox->Take(400);
  EXPECT_EQ(inbox->OffsetOf(large->bytes), kStaging + 576);
  const std::optional<PushMemory> small = inbox->Take(64);
  EXPECT_EQ(inbox->OffsetOf(small->bytes), kStaging);
}

TEST(InboxMemoryTest, WhatComesBackIsJoinedWithItsNeighbours) {
  const auto inbox = NewInbox(1024);
  std::vector<std::optional<PushMemory>> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(inbox->Take(256));
  EXPECT_FALSE(inbox->Take(1).has_value());
  for (const int i : {1, 3, 0, 2}) parts[static_cast<size_t>(i)].reset();
  const std::optional<PushMemory> all = inbox->Take(1024);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(inbox->OffsetOf(all->bytes), kStaging);
}

TEST(InboxMemoryTest, OtherMemoryHasNoPlaceInIt) {
  const auto inbox = NewInbox(1024);
  const std::vector<std::byte> elsewhere(64);
  EXPECT_EQ(inbox->OffsetOf(elsewhere), -1);
  EXPECT_EQ(inbox->OffsetOf(inbox->Staging(0, 64)), -1);
  const std::optional<PushMemory> all = inbox->Take(1024);
  EXPECT_EQ(inbox->OffsetOf(all->bytes.subspan(128)), kStaging + 128);
  EXPECT_EQ(inbox->OffsetOf(absl::MakeConstSpan(all->bytes.data() + 512, 513)), -1);
}

TEST(InboxMemoryTest, AnInboxOfSlotsAloneHandsNothingOut) { EXPECT_FALSE(NewInbox(0)->Take(1).has_value()); }

TEST(InboxMemoryTest, MemoryMayOutliveTheInbox) {
  auto inbox = NewInbox(1024);
  std::optional<PushMemory> memory = inbox->Take(1024);
  inbox.reset();
  std::memset(memory->bytes.data(), 1, memory->bytes.size());
  memory.reset();
}

}  // namespace
}  // namespace eps::worker
