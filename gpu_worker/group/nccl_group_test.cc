#include "gpu_worker/group/nccl_group.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/emulated_nccl.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/group/group_conformance.h"
#include "gpu_worker/group/nccl_api.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

std::unique_ptr<Device> EmulatedDevice(int64_t arena_bytes) {
  return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = Dtype::kF32},
                             cuda::NewEmulatedRuntime(cuda::GridOrder::kForward))
      .value();
}

INSTANTIATE_TEST_SUITE_P(Nccl, GroupConformanceTest,
                         testing::ValuesIn(GroupCases({.name = "nccl",
                                                       .new_maker = [] { return NewNcclGroupMaker(NewEmulatedNccl()); },
                                                       .new_device = &EmulatedDevice,
                                                       .finds_differences = false})),
                         testing::PrintToStringParamName());

TEST(NcclTransfersTest, EachPeersSendsAndReceivesInOrderAndNothingEmpty) {
  std::vector<std::byte> memory(100);
  const auto at = [&](size_t first, size_t count) { return absl::MakeSpan(memory).subspan(first, count); };
  const Exchange exchange = {.gives = {{at(0, 10), at(10, 0), at(10, 5)}, {}, {at(15, 1)}},
                             .gets = {{at(50, 7)}, {}, {at(60, 0), at(60, 20)}}};
  const std::vector<NcclTransfer> transfers = NcclTransfers(exchange);
  ASSERT_EQ(transfers.size(), 5u);
  const std::vector<int> peers = {0, 0, 0, 2, 2};
  const std::vector<size_t> bytes = {10, 5, 7, 1, 20};
  const std::vector<bool> sends = {true, true, false, true, false};
  for (size_t i = 0; i < transfers.size(); ++i) {
    EXPECT_EQ(transfers[i].peer, peers[i]) << i;
    EXPECT_EQ(transfers[i].num_bytes, bytes[i]) << i;
    EXPECT_EQ(transfers[i].send != nullptr, sends[i]) << i;
    EXPECT_EQ(transfers[i].receive != nullptr, !sends[i]) << i;
  }
  EXPECT_EQ(transfers[1].send, memory.data() + 10);
  EXPECT_EQ(transfers[4].receive, memory.data() + 60);
}

TEST(NcclGroupTest, ATokenOfAnotherKindIsRefused) {
  const std::unique_ptr<Device> device = EmulatedDevice(4096);
  const auto maker = NewNcclGroupMaker(NewEmulatedNccl());
  for (const std::string& token : {std::string(), std::string("/tmp/socket"),
                                   std::string("\xff"
                                               "abc"),
                                   std::string("\x05"
                                               "abcd")}) {
    EXPECT_THAT(
        maker->Join({.id = 1, .rank = 1, .size = 2, .device = device.get(), .on_joined = [](absl::Status) {}}, token)
            .status(),
        StatusIs(StatusCode::kInvalidArgument, "group: token"))
        << token;
  }
}

// A communicator that cannot be made, as where two workers share a GPU.
TEST(NcclGroupTest, WhatNcclRefusesIsToldAndTheStreamsGoOn) {
  class Refusing : public NcclApi {
   public:
    std::string version() const override { return "nccl-refusing"; }
    absl::StatusOr<std::string> NewId() override { return std::string("id"); }
    absl::StatusOr<NcclComm> Begin(const std::string&, int, int) override {
      return absl::InternalError("duplicate GPU");
    }
    absl::Status State(NcclComm) override { return absl::InternalError("never begun"); }
    absl::Status Transfer(NcclComm, const std::vector<NcclTransfer>&, void*) override { return State(nullptr); }
    absl::StatusOr<void*> NewScratch(size_t, void*) override { return State(nullptr); }
    absl::Status FreeScratch(void*, void*) override { return State(nullptr); }
    void Abort(NcclComm) override { FAIL(); }
  };
  const std::unique_ptr<Device> device = EmulatedDevice(4096);
  const auto maker = NewNcclGroupMaker(std::make_shared<Refusing>());
  Joined joined;
  std::string token;
  auto group = maker->Found({.id = 1,
                             .rank = 0,
                             .size = 2,
                             .device = device.get(),
                             .on_joined = [&](absl::Status status) { joined.Set(std::move(status)); }},
                            token);
  ASSERT_OK(group);
  EXPECT_THAT(joined.Wait(), StatusIs(StatusCode::kAborted, "duplicate GPU"));
  EXPECT_THAT((*group)->status(), StatusIs(StatusCode::kAborted, "duplicate GPU"));
  for (const StreamId id : {StreamId::kIn, StreamId::kOut}) EXPECT_OK(device->stream(id).Synchronize());
}

class ForwardingNccl : public NcclApi {
 public:
  std::string version() const override { return nccl_->version(); }
  absl::StatusOr<std::string> NewId() override { return nccl_->NewId(); }
  absl::StatusOr<NcclComm> Begin(const std::string& id, int rank, int size) override {
    return nccl_->Begin(id, rank, size);
  }
  absl::Status State(NcclComm comm) override { return nccl_->State(comm); }
  absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) override {
    return nccl_->Transfer(comm, transfers, stream);
  }
  absl::StatusOr<void*> NewScratch(size_t num_bytes, void* stream) override {
    return nccl_->NewScratch(num_bytes, stream);
  }
  absl::Status FreeScratch(void* scratch, void* stream) override { return nccl_->FreeScratch(scratch, stream); }
  void Abort(NcclComm comm) override { nccl_->Abort(comm); }

 private:
  const std::unique_ptr<NcclApi> nccl_ = NewEmulatedNccl();
};

struct NcclMember {
  std::unique_ptr<Device> device = EmulatedDevice(1 << 16);
  std::shared_ptr<NcclApi> nccl;
  Joined joined;
  std::unique_ptr<Group> group;

  Stream& in() const { return device->stream(StreamId::kIn); }
  Stream& out() const { return device->stream(StreamId::kOut); }
  absl::Span<std::byte> Memory(size_t offset_bytes, size_t num_bytes) const {
    void* const memory = device->Address({.offset_bytes = 0, .num_bytes = 1 << 16}).value();
    return absl::MakeSpan(static_cast<std::byte*>(memory) + offset_bytes, num_bytes);
  }
  GroupOptions Options(int rank, int size) {
    return {.id = 1, .rank = rank, .size = size, .device = device.get(), .on_joined = [this](absl::Status status) {
              joined.Set(std::move(status));
            }};
  }
};

// One for each API, by rank; they have joined.
std::vector<std::unique_ptr<NcclMember>> FormNcclGroup(const std::vector<std::shared_ptr<NcclApi>>& apis) {
  std::vector<std::unique_ptr<NcclMember>> members;
  std::string token;
  for (const std::shared_ptr<NcclApi>& api : apis) {
    const auto rank = static_cast<int>(members.size());
    members.push_back(std::make_unique<NcclMember>());
    NcclMember& member = *members.back();
    member.nccl = api;
    GroupOptions options = member.Options(rank, static_cast<int>(apis.size()));
    const auto maker = NewNcclGroupMaker(api);
    member.group =
        (rank == 0 ? maker->Found(std::move(options), token) : maker->Join(std::move(options), token)).value();
  }
  for (const auto& member : members) EXPECT_OK(member->joined.Wait());
  return members;
}

// As the library where a connection between two GPUs breaks while an exchange is on its way.
class Breaking : public ForwardingNccl {
 public:
  absl::Status State(NcclComm comm) override {
    return broken ? absl::InternalError("remote process exited") : ForwardingNccl::State(comm);
  }
  absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) override {
    if (refuses) return absl::InternalError("no connection");
    if (breaks_next) broken = true;
    return ForwardingNccl::Transfer(comm, transfers, stream);
  }

  std::atomic<bool> broken = false;
  std::atomic<bool> refuses = false;      // transfers
  std::atomic<bool> breaks_next = false;  // at the next transfer
};

// Two members that have joined, and what the first is to get of the second.
class NcclPairTest : public testing::Test {
 protected:
  void SetUp() override { members_ = FormNcclGroup({nccl_, std::make_shared<Breaking>()}); }
  // Which the second never gives.
  void EnqueueFirst() {
    Exchange exchange = {.gives = {{}, {}}, .gets = {{}, {}}};
    exchange.gets[1].push_back(members_[0]->Memory(0, 64));
    members_[0]->group->Enqueue(GroupLane::kPull, std::move(exchange));
  }

  const std::shared_ptr<Breaking> nccl_ = std::make_shared<Breaking>();  // of the first
  std::vector<std::unique_ptr<NcclMember>> members_;
};

TEST_F(NcclPairTest, WhatBreaksBehindAnExchangeEndsTheGroup) {
  EnqueueFirst();
  // Behind it in the stream, so that it was issued when it breaks.
  members_[0]->in().IssueNative([&](void*) {
    nccl_->broken = true;
    return absl::OkStatus();
  });
  EXPECT_OK(members_[0]->in().Synchronize());
  EXPECT_THAT(members_[0]->group->status(), StatusIs(StatusCode::kAborted, "remote process exited"));
}

// The thread that issues an exchange sees the same errors, and a worker that goes on alone after the one must after the
// other.
TEST_F(NcclPairTest, WhatBreaksWhileAnExchangeIsIssuedEndsTheGroupTheSameWay) {
  nccl_->breaks_next = true;
  EnqueueFirst();
  EXPECT_THAT(members_[0]->in().Synchronize(),
              StatusIs(StatusCode::kAborted, "the group has ended: remote process exited"));
  EXPECT_THAT(members_[0]->group->status(), StatusIs(StatusCode::kAborted, "remote process exited"));
}

TEST_F(NcclPairTest, AnExchangeThatNcclRefusesEndsTheGroup) {
  nccl_->refuses = true;
  EnqueueFirst();
  EXPECT_THAT(members_[0]->in().Synchronize(), StatusIs(StatusCode::kAborted, "the group has ended: no connection"));
  EXPECT_THAT(members_[0]->group->status(), StatusIs(StatusCode::kAborted, "no connection"));
}

// An exchange of two, of so many bytes each way, behind those of `place`.
Exchange ExchangeOfTwo(const NcclMember& member, size_t place, size_t num_bytes) {
  const auto other = static_cast<size_t>(1 - member.group->rank());
  Exchange exchange = {.gives = {{}, {}}, .gets = {{}, {}}};
  exchange.gives[other] = {member.Memory(place * 2048, num_bytes)};
  exchange.gets[other] = {member.Memory(place * 2048 + 1024, num_bytes)};
  return exchange;
}

// NCCL wants one order of all ranks. The two streams' threads would issue in whatever order they come to it: the first
// member's in-stream is late, and the second's out-stream.
TEST(NcclGroupTest, MembersIssueTheExchangesOfBothStreamsInOneOrder) {
  class Recording : public ForwardingNccl {
   public:
    absl::StatusOr<NcclComm> Begin(const std::string& id, int rank, int size) override {
      ++begun;
      return ForwardingNccl::Begin(id, rank, size);
    }
    absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) override {
      {
        MutexLock lock(mu);
        num_bytes.push_back(transfers.front().num_bytes);
      }
      return ForwardingNccl::Transfer(comm, transfers, stream);
    }
    // Slowly, so that a turn that was passed before its exchange is issued is taken meanwhile, which is refused.
    absl::Status State(NcclComm comm) override {
      absl::Status state = ForwardingNccl::State(comm);
      if (absl::IsUnavailable(state)) absl::SleepFor(absl::Milliseconds(1));
      return state;
    }
    std::atomic<int> begun = 0;
    Mutex mu;
    std::vector<size_t> num_bytes ABSL_GUARDED_BY(mu);  // of each exchange
  };
  const std::vector<std::shared_ptr<Recording>> apis = {std::make_shared<Recording>(), std::make_shared<Recording>()};
  const auto members = FormNcclGroup({apis[0], apis[1]});
  for (Stream* late : {&members[0]->in(), &members[1]->out()}) {
    late->IssueNative([](void*) {
      absl::SleepFor(absl::Milliseconds(50));
      return absl::OkStatus();
    });
  }
  std::vector<size_t> want = {1};  // of joining
  for (size_t number = 0; number < 8; ++number) {
    want.push_back(64 + number);
    for (const auto& member : members) {
      member->group->Enqueue(number % 2 == 0 ? GroupLane::kPull : GroupLane::kPush,
                             ExchangeOfTwo(*member, number, 64 + number));
    }
  }
  for (const auto& member : members) {
    EXPECT_OK(member->out().Synchronize());
    EXPECT_OK(member->in().Synchronize());
    EXPECT_OK(member->group->status());
  }
  for (const auto& api : apis) {
    MutexLock lock(api->mu);
    EXPECT_EQ(api->num_bytes, want);
    EXPECT_EQ(api->begun, 1);
  }
}

// Who has nothing to exchange with anybody is in turn all the same, and asks nothing of NCCL.
TEST(NcclGroupTest, AnExchangeOfNothingIsNotIssued) {
  class NeverEmpty : public ForwardingNccl {
   public:
    absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) override {
      EXPECT_FALSE(transfers.empty());
      return ForwardingNccl::Transfer(comm, transfers, stream);
    }
  };
  const auto members = FormNcclGroup({std::make_shared<NeverEmpty>(), std::make_shared<NeverEmpty>()});
  for (const auto& member : members) {
    member->group->Enqueue(GroupLane::kPush, {.gives = {{}, {}}, .gets = {{}, {}}});
    member->group->Enqueue(GroupLane::kPull, ExchangeOfTwo(*member, 0, 64));
  }
  for (const auto& member : members) {
    EXPECT_OK(member->in().Synchronize());
    EXPECT_OK(member->out().Synchronize());
  }
}

// The other stream's exchanges come after it, and would wait for it.
TEST(NcclGroupTest, AnExchangeThatAFailedStreamDropsEndsTheGroup) {
  const auto members = FormNcclGroup({std::make_shared<ForwardingNccl>(), std::make_shared<ForwardingNccl>()});
  members[0]->in().IssueNative([](void*) { return absl::InternalError("an illegal access"); });
  for (const auto& member : members) {
    member->group->Enqueue(GroupLane::kPull, ExchangeOfTwo(*member, 0, 64));
    member->group->Enqueue(GroupLane::kPush, ExchangeOfTwo(*member, 1, 128));
  }
  EXPECT_THAT(members[0]->out().Synchronize(), StatusIs(StatusCode::kAborted, "an exchange was left out"));
  EXPECT_THAT(members[0]->in().Synchronize(), StatusIs(StatusCode::kInternal, "an illegal access"));
  members[1]->in().Synchronize().IgnoreError();  // cut short, it says nothing
  members[1]->out().Synchronize().IgnoreError();
  EXPECT_THAT(members[1]->group->status(), StatusIs(StatusCode::kAborted, "the group has ended"));
}

TEST(NcclGroupTest, AGroupThatAFailedStreamCannotJoinIsToldSo) {
  NcclMember first;
  first.in().IssueNative([](void*) { return absl::InternalError("an illegal access"); });
  EXPECT_THAT(first.in().Synchronize(), StatusIs(StatusCode::kInternal, "an illegal access"));
  std::string token;
  ASSERT_OK_AND_ASSIGN(first.group,
                       NewNcclGroupMaker(std::make_shared<ForwardingNccl>())->Found(first.Options(0, 2), token));
  EXPECT_THAT(first.joined.Wait(), StatusIs(StatusCode::kAborted, "left out"));
}

TEST(NcclGroupTest, AGroupThatCannotBeFoundedIsToldOnce) {
  class WithoutIds : public ForwardingNccl {
   public:
    absl::StatusOr<std::string> NewId() override { return absl::InternalError("no network"); }
  };
  const std::unique_ptr<Device> device = EmulatedDevice(4096);
  std::atomic<int> told = 0;
  std::string token;
  EXPECT_THAT(
      NewNcclGroupMaker(std::make_shared<WithoutIds>())
          ->Found({.id = 1, .rank = 0, .size = 2, .device = device.get(), .on_joined = [&](absl::Status) { ++told; }},
                  token)
          .status(),
      StatusIs(StatusCode::kInternal, "no network"));
  EXPECT_EQ(told, 0);
}

// A member's abort lets the others' exchanges end as if they had brought something. Whoever looks after that must find the
// group at its end, before any word of why.
TEST(NcclGroupTest, NobodyTakesWhatIsLeftOfAnExchangeThatAnotherMemberHasAborted) {
  class Observed : public ForwardingNccl {
   public:
    void Abort(NcclComm comm) override {
      before_abort();
      ForwardingNccl::Abort(comm);
    }
    std::function<void()> before_abort;
  };
  Mutex mu;
  CondVar changed;
  int aborts = 0;
  std::vector<std::unique_ptr<NcclMember>> members;
  const std::vector<std::shared_ptr<Observed>> apis = {std::make_shared<Observed>(), std::make_shared<Observed>(),
                                                       std::make_shared<Observed>()};
  for (int rank = 0; rank < 3; ++rank) {
    apis[static_cast<size_t>(rank)]->before_abort = [&, rank] {
      for (const auto& other : members) {
        EXPECT_FALSE(other->group->status().ok()) << "of " << other->group->rank() << ", as " << rank << " aborts";
      }
      MutexLock lock(mu);
      ++aborts;
      changed.NotifyAll();
    };
  }
  members = FormNcclGroup({apis[0], apis[1], apis[2]});
  for (int rank = 0; rank < 2; ++rank) {
    const auto& member = members[static_cast<size_t>(rank)];
    Exchange exchange = {.gives = {{}, {}, {}}, .gets = {{}, {}, {}}};
    exchange.gets[2] = {member->Memory(0, 64)};
    member->group->Enqueue(GroupLane::kPull, std::move(exchange));
    member->in().HostCall([group = member->group.get()] { return group->status(); });
  }
  members[2]->group->End(absl::InternalError("its device broke"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(members[static_cast<size_t>(rank)]->in().Synchronize(),
                StatusIs(StatusCode::kAborted, "the group has ended: member 2: its device broke"));
  }
  MutexLock lock(mu);
  while (aborts < 3) changed.Wait(mu);
}

// As the library, which has one call of a communicator in progress at most.
TEST(EmulatedNcclTest, AnExchangeIsRefusedWhileTheOneBeforeIsInProgress) {
  const std::unique_ptr<NcclApi> nccl = NewEmulatedNccl();
  const NcclMember member;
  ASSERT_OK_AND_ASSIGN(const std::string id, nccl->NewId());
  ASSERT_OK_AND_ASSIGN(const NcclComm comm, nccl->Begin(id, /*rank=*/0, /*size=*/1));
  const std::vector<NcclTransfer> to_itself = {{.peer = 0, .send = member.Memory(0, 64).data(), .num_bytes = 64},
                                               {.peer = 0, .receive = member.Memory(64, 64).data(), .num_bytes = 64}};
  member.in().IssueNative([&](void* stream) {
    for (int time = 0; time < 2; ++time) {
      EXPECT_OK(nccl->State(comm));
      EXPECT_OK(nccl->Transfer(comm, to_itself, stream));
      EXPECT_THAT(nccl->Transfer(comm, to_itself, stream), StatusIs(StatusCode::kInternal, "in progress"));
      EXPECT_THAT(nccl->State(comm), StatusIs(StatusCode::kUnavailable));
      while (absl::IsUnavailable(nccl->State(comm))) continue;
    }
    return absl::OkStatus();
  });
  EXPECT_OK(member.in().Synchronize());
  nccl->Abort(comm);
}

// The second member waits for the first, which never comes. What the third gave it in that exchange is not what it is
// to get in the next one.
TEST(EmulatedNcclTest, AnExchangeThatWaitsWhileItsMemberAbortsTakesNothing) {
  // Of the first, whose abort would let the exchange end as if it had come.
  class AbortingLate : public ForwardingNccl {
   public:
    void Abort(NcclComm comm) override {
      others_are_over.get_future().wait();
      ForwardingNccl::Abort(comm);
    }
    std::promise<void> others_are_over;
  };
  const auto late = std::make_shared<AbortingLate>();
  const auto members = FormNcclGroup({late, std::make_shared<ForwardingNccl>(), std::make_shared<ForwardingNccl>()});
  NcclMember &waiting = *members[1], &giving = *members[2];
  const auto exchange = [] { return Exchange{.gives = {{}, {}, {}}, .gets = {{}, {}, {}}}; };
  Exchange first = exchange(), next = exchange();
  first.gives[1] = {giving.Memory(0, 64)};
  next.gives[1] = {giving.Memory(64, 128)};
  giving.group->Enqueue(GroupLane::kPull, std::move(first));
  giving.group->Enqueue(GroupLane::kPush, std::move(next));
  EXPECT_OK(giving.in().Synchronize());  // it has given both
  EXPECT_OK(giving.out().Synchronize());

  const absl::Span<std::byte> got = waiting.Memory(128, 128);
  std::fill(got.begin(), got.end(), std::byte{7});
  first = exchange(), next = exchange();
  first.gets[0] = {waiting.Memory(0, 64)};
  first.gets[2] = {waiting.Memory(64, 64)};
  next.gets[2] = {got};
  waiting.group->Enqueue(GroupLane::kPull, std::move(first));
  waiting.group->Enqueue(GroupLane::kPush, std::move(next));
  waiting.out().IssueNative([&](void*) {  // both are issued
    waiting.group->End(absl::CancelledError("enough"));
    return absl::OkStatus();
  });
  waiting.in().Synchronize().IgnoreError();
  waiting.out().Synchronize().IgnoreError();
  late->others_are_over.set_value();
  EXPECT_THAT(waiting.group->status(), StatusIs(StatusCode::kAborted, "enough"));
  EXPECT_EQ(std::count(got.begin(), got.end(), std::byte{7}), 128);
}

}  // namespace
}  // namespace eps::worker
