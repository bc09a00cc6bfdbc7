#include "gpu_worker/group/group_conformance.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/schedule/group_limits.h"
#include "common/testing/status_matchers.h"

namespace eps::worker {
namespace {

using absl::StatusCode;
using testing::ValuesIn;

constexpr int64_t kArenaBytes = int64_t{8} << 20;
constexpr uint64_t kGroupId = 0x1234567890abcdef;

}  // namespace

std::vector<GroupCase> GroupCases(const GroupKind& kind) {
  std::vector<GroupCase> cases;
  for (const int size : {2, 3, 4, 8}) cases.push_back({.kind = kind, .size = size});
  return cases;
}

void Joined::Set(absl::Status status) {
  MutexLock lock(mu_);
  EXPECT_FALSE(set_) << "told twice";
  set_ = true;
  status_ = std::move(status);
  changed_.NotifyAll();
}

absl::Status Joined::Wait() {
  MutexLock lock(mu_);
  while (!set_) changed_.Wait(mu_);
  return status_;
}

absl::Span<std::byte> GroupMember::Memory(int64_t offset_bytes, int64_t num_bytes) const {
  const auto memory = device->Address({.offset_bytes = offset_bytes, .num_bytes = num_bytes});
  EXPECT_OK(memory);
  return absl::MakeSpan(static_cast<std::byte*>(*memory), static_cast<size_t>(num_bytes));
}

void GroupMember::Fill(absl::Span<std::byte> memory, const std::vector<std::byte>& bytes) const {
  EXPECT_EQ(memory.size(), bytes.size());
  Stream& stream = device->stream(StreamId::kCompute);
  stream.CopyIn(memory.data(), bytes);
  EXPECT_OK(stream.Synchronize());
}

std::vector<std::byte> GroupMember::Read(absl::Span<const std::byte> memory) const {
  std::vector<std::byte> bytes(memory.size());
  Stream& stream = device->stream(StreamId::kCompute);
  stream.CopyOut(absl::MakeSpan(bytes), memory.data());
  EXPECT_OK(stream.Synchronize());
  return bytes;
}

Stream& GroupMember::stream(GroupLane lane) const { return StreamOf(*device, lane); }

void GroupConformanceTest::Form(bool all_join) {
  for (int rank = 0; rank < size(); ++rank) {
    auto member = std::make_unique<GroupMember>();
    member->device = GetParam().kind.new_device(kArenaBytes);
    member->maker = GetParam().kind.new_maker();
    members_.push_back(std::move(member));
  }
  GroupMember& first = member(0);
  auto group = first.maker->Found({.id = kGroupId,
                                   .rank = 0,
                                   .size = size(),
                                   .device = first.device.get(),
                                   .on_joined = [&first](absl::Status status) { first.joined.Set(std::move(status)); }},
                                  token_);
  ASSERT_OK(group);
  EXPECT_LE(token_.size(), kMaxGroupTokenBytes);
  first.group = *std::move(group);
  if (!all_join) return;
  for (int rank = 1; rank < size(); ++rank) Join(rank);
  for (const auto& member : members_) ASSERT_OK(member->joined.Wait());
}

void GroupConformanceTest::Join(int rank) {
  GroupMember& one = member(rank);
  auto group = one.maker->Join({.id = kGroupId,
                                .rank = rank,
                                .size = size(),
                                .device = one.device.get(),
                                .on_joined = [&one](absl::Status status) { one.joined.Set(std::move(status)); }},
                               token_);
  ASSERT_OK(group);
  one.group = *std::move(group);
  EXPECT_EQ(one.group->rank(), rank);
  EXPECT_EQ(one.group->size(), size());
}

std::vector<std::byte> GroupConformanceTest::Pattern(int from, int to, int number, int64_t num_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_bytes));
  uint64_t state =
      static_cast<uint64_t>(from) * 1000003 + static_cast<uint64_t>(to) * 1009 + static_cast<uint64_t>(number) * 7 + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

Exchange GroupConformanceTest::NoExchange() const {
  Exchange exchange;
  exchange.gives.resize(static_cast<size_t>(size()));
  exchange.gets.resize(static_cast<size_t>(size()));
  return exchange;
}

Exchange GroupConformanceTest::OwnPartToAll(int rank, int64_t num_bytes, int64_t stride) {
  const GroupMember& one = member(rank);
  const absl::Span<std::byte> own = one.Memory(rank * stride, num_bytes);
  one.Fill(own, Pattern(rank, 0, 0, num_bytes));
  Exchange exchange = NoExchange();
  for (int other = 0; other < size(); ++other) {
    if (other == rank) continue;
    exchange.gives[static_cast<size_t>(other)] = {own};
    exchange.gets[static_cast<size_t>(other)] = {one.Memory(other * stride, num_bytes)};
  }
  return exchange;
}

TEST_P(GroupConformanceTest, EachGetsThePartsOfAllTheOthers) {
  constexpr int64_t kPart = 300000;  // more than a ring holds, and no multiple of anything
  constexpr int64_t kStride = 303104;
  Form();
  for (int rank = 0; rank < size(); ++rank) {
    member(rank).group->Enqueue(GroupLane::kPull, OwnPartToAll(rank, kPart, kStride));
  }
  for (const auto& one : members_) EXPECT_OK(one->stream(GroupLane::kPull).Synchronize());
  for (int rank = 0; rank < size(); ++rank) {
    for (int other = 0; other < size(); ++other) {
      const auto part = member(rank).Memory(other * kStride, kPart);
      EXPECT_TRUE(member(rank).Read(part) == Pattern(other, 0, 0, kPart)) << rank << " has of " << other;
    }
    EXPECT_OK(member(rank).group->status());
  }
}

// Each gives each other something else, in several spans; some nothing at all.
TEST_P(GroupConformanceTest, SeveralSpansArriveInTheirOrder) {
  constexpr int64_t kStride = 4096;
  const auto num_bytes = [](int from, int to) { return int64_t{(from * 3 + to) % 4} * 1000; };
  Form();
  for (int rank = 0; rank < size(); ++rank) {
    GroupMember& one = member(rank);
    Exchange exchange = NoExchange();
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      const int64_t gives = num_bytes(rank, other), gets = num_bytes(other, rank);
      if (gives > 0) {
        const auto memory = one.Memory(other * kStride, gives);
        one.Fill(memory, Pattern(rank, other, 0, gives));
        exchange.gives[static_cast<size_t>(other)] = {memory.subspan(0, 100), memory.subspan(100, 0),
                                                      memory.subspan(100)};
      }
      if (gets > 0) {
        const auto memory = one.Memory((size() + other) * kStride, gets);
        exchange.gets[static_cast<size_t>(other)] = {memory.subspan(0, 100), memory.subspan(100)};
      }
    }
    one.group->Enqueue(GroupLane::kPush, std::move(exchange));
  }
  for (const auto& one : members_) ASSERT_OK(one->stream(GroupLane::kPush).Synchronize());
  for (int rank = 0; rank < size(); ++rank) {
    for (int other = 0; other < size(); ++other) {
      const int64_t gets = num_bytes(other, rank);
      if (other == rank || gets == 0) continue;
      const auto memory = member(rank).Memory((size() + other) * kStride, gets);
      EXPECT_TRUE(member(rank).Read(memory) == Pattern(other, rank, 0, gets)) << other << " to " << rank;
    }
  }
}

TEST_P(GroupConformanceTest, ExchangesOfBothLanesKeepOneOrder) {
  constexpr int kExchanges = 20;
  constexpr int64_t kPart = 512;
  Form();
  // What the exchanges of a lane bring lies in a place of its own, by number and member.
  const auto place = [&](GroupLane lane, int number, int other) {
    return ((static_cast<int64_t>(lane) * kExchanges + number) * 2 * size() + other) * kPart;
  };
  const auto enqueue = [&](int rank, GroupLane lane, int number) {
    GroupMember& one = member(rank);
    Exchange exchange = NoExchange();
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      const auto gives = one.Memory(place(lane, number, size() + other), kPart);
      one.Fill(gives, Pattern(rank, other, number + 100 * static_cast<int>(lane), kPart));
      exchange.gives[static_cast<size_t>(other)] = {gives};
      exchange.gets[static_cast<size_t>(other)] = {one.Memory(place(lane, number, other), kPart)};
    }
    one.group->Enqueue(lane, std::move(exchange));
  };
  for (int rank = 0; rank < size(); ++rank) {
    for (int number = 0; number < kExchanges; ++number) {
      for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) enqueue(rank, lane, number);
    }
  }
  for (const auto& one : members_) {
    for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) ASSERT_OK(one->stream(lane).Synchronize());
  }
  for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) {
    for (int rank = 0; rank < size(); ++rank) {
      for (int other = 0; other < size(); ++other) {
        for (int number = 0; other != rank && number < kExchanges; ++number) {
          const auto memory = member(rank).Memory(place(lane, number, other), kPart);
          ASSERT_TRUE(member(rank).Read(memory) == Pattern(other, rank, number + 100 * static_cast<int>(lane), kPart));
        }
      }
    }
  }
}

TEST_P(GroupConformanceTest, AnExchangeMayBeginBeforeTheOthersJoin) {
  constexpr int64_t kPart = 4096;
  Form(/*all_join=*/false);
  const auto enqueue = [&](int rank) {
    member(rank).group->Enqueue(GroupLane::kPush, OwnPartToAll(rank, kPart, kPart));
  };
  enqueue(0);
  for (int rank = 1; rank < size(); ++rank) {
    Join(rank);
    enqueue(rank);
  }
  for (const auto& one : members_) {
    EXPECT_OK(one->joined.Wait());
    EXPECT_OK(one->stream(GroupLane::kPush).Synchronize());
  }
  EXPECT_TRUE(member(0).Read(member(0).Memory(kPart, kPart)) == Pattern(1, 0, 0, kPart));
}

// All but the last are in an exchange when it ends: no stream waits on, each group says so, and what comes later fails.
// The stream itself may say nothing, as on a GPU.
TEST_P(GroupConformanceTest, TheEndOfOneIsTheEndOfAll) {
  Form();
  const auto enqueue = [&](int rank, GroupLane lane) {
    GroupMember& one = member(rank);
    Exchange exchange = NoExchange();
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      exchange.gives[static_cast<size_t>(other)] = {one.Memory(0, 1024)};
      exchange.gets[static_cast<size_t>(other)] = {one.Memory((1 + other) * 1024, 1024)};
    }
    one.group->Enqueue(lane, std::move(exchange));
  };
  for (int rank = 0; rank + 1 < size(); ++rank) {
    enqueue(rank, GroupLane::kPull);
    enqueue(rank, GroupLane::kPush);
  }
  const std::string reason = "its device broke: \"illegal access\"";
  member(size() - 1).group->End(absl::InternalError(reason));
  member(size() - 1).group->End(absl::InternalError("a later reason"));
  EXPECT_EQ(member(size() - 1).group->status(), absl::AbortedError("the group has ended: " + reason));
  // As it was given, and with whom it began, though all but member 0 hear of it from that one.
  const absl::Status of_the_others =
      absl::AbortedError(absl::StrCat("the group has ended: member ", size() - 1, ": ", reason));
  for (int rank = 0; rank + 1 < size(); ++rank) {
    GroupMember& one = member(rank);
    for (const GroupLane lane : {GroupLane::kPull, GroupLane::kPush}) {
      const absl::Status status = one.stream(lane).Synchronize();
      EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
    }
    EXPECT_EQ(one.group->status(), of_the_others);
    one.device->Recover();
    enqueue(rank, GroupLane::kPush);
    EXPECT_THAT(one.stream(GroupLane::kPush).Synchronize(), StatusIs(StatusCode::kAborted));
    one.device->Recover();
  }
}

TEST_P(GroupConformanceTest, AMemberThatGoesEndsTheGroup) {
  Form();
  GroupMember& first = member(0);
  Exchange exchange = NoExchange();
  for (int other = 1; other < size(); ++other) {
    exchange.gives[static_cast<size_t>(other)] = {first.Memory(0, 64)};
    exchange.gets[static_cast<size_t>(other)] = {first.Memory(4096 * other, 64)};
  }
  first.group->Enqueue(GroupLane::kPush, std::move(exchange));
  member(size() - 1).group.reset();
  first.stream(GroupLane::kPush).Synchronize().IgnoreError();
  EXPECT_THAT(first.group->status(), StatusIs(StatusCode::kAborted, "the group has ended"));
  first.device->Recover();
}

// One that waits for members who never come can be told to stop.
TEST_P(GroupConformanceTest, AGroupThatIsNotCompleteCanEnd) {
  Form(/*all_join=*/false);
  member(0).group->End(absl::UnavailableError("a worker was lost"));
  EXPECT_THAT(member(0).joined.Wait(), StatusIs(StatusCode::kAborted, "a worker was lost"));
}

TEST_P(GroupConformanceTest, MembersThatDoNotExchangeTheSameAreTold) {
  if (!GetParam().kind.finds_differences) GTEST_SKIP() << "this kind does not look";
  Form();
  for (int rank = 0; rank < size(); ++rank) {
    GroupMember& one = member(rank);
    Exchange exchange = NoExchange();
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      exchange.gives[static_cast<size_t>(other)] = {one.Memory(0, rank == 0 ? 128 : 64)};
      exchange.gets[static_cast<size_t>(other)] = {one.Memory(4096 + other * 256, 64)};
    }
    one.group->Enqueue(GroupLane::kPush, std::move(exchange));
  }
  // The first to find it says it, and ends the group for the others. Member 0 may be done before: it got what it wanted.
  int told = 0;
  member(0).stream(GroupLane::kPush).Synchronize().IgnoreError();
  for (int rank = 1; rank < size(); ++rank) {
    const absl::Status status = member(rank).stream(GroupLane::kPush).Synchronize();
    if (absl::IsInternal(status)) {
      ++told;
      EXPECT_THAT(status, StatusIs(StatusCode::kInternal, "group: member 0 gives 128 bytes in exchange 1, member "));
    } else {
      EXPECT_THAT(status, StatusIs(StatusCode::kAborted, "the group has ended"));
    }
    EXPECT_THAT(member(rank).group->status(), StatusIs(StatusCode::kAborted));
  }
  EXPECT_GE(told, 1);
  for (const auto& one : members_) one->device->Recover();
}

TEST_P(GroupConformanceTest, ARankOrSizeThatCannotBeIsRefused) {
  std::string token;
  const std::unique_ptr<GroupMaker> maker = GetParam().kind.new_maker();
  const auto found = [&](int rank, int of) {
    return maker->Found({.id = 1, .rank = rank, .size = of, .on_joined = [](absl::Status) {}}, token).status();
  };
  EXPECT_THAT(found(0, 1), StatusIs(StatusCode::kInvalidArgument, "size: 1"));
  EXPECT_THAT(found(2, 2), StatusIs(StatusCode::kInvalidArgument, "rank: 2"));
  EXPECT_THAT(found(-1, 2), StatusIs(StatusCode::kInvalidArgument, "rank: -1"));
}

}  // namespace eps::worker
