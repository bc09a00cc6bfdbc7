#include "gpu_worker/group/nccl_group.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/group/emulated_nccl.h"
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
                                   std::string("\x01"
                                               "a\x05"
                                               "abc")}) {
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

// As the library where a connection between two GPUs breaks while an exchange is on its way.
class Breaking : public NcclApi {
 public:
  std::string version() const override { return nccl_->version(); }
  absl::StatusOr<std::string> NewId() override { return nccl_->NewId(); }
  absl::StatusOr<NcclComm> Begin(const std::string& id, int rank, int size) override {
    return nccl_->Begin(id, rank, size);
  }
  absl::Status State(NcclComm comm) override {
    return broken ? absl::InternalError("remote process exited") : nccl_->State(comm);
  }
  absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) override {
    if (refuses) return absl::InternalError("no connection");
    if (breaks_next) broken = true;
    return nccl_->Transfer(comm, transfers, stream);
  }
  absl::StatusOr<void*> NewScratch(size_t num_bytes, void* stream) override {
    return nccl_->NewScratch(num_bytes, stream);
  }
  absl::Status FreeScratch(void* scratch, void* stream) override { return nccl_->FreeScratch(scratch, stream); }
  void Abort(NcclComm comm) override { nccl_->Abort(comm); }

  std::atomic<bool> broken = false;
  std::atomic<bool> refuses = false;      // transfers
  std::atomic<bool> breaks_next = false;  // at the next transfer

 private:
  const std::unique_ptr<NcclApi> nccl_ = NewEmulatedNccl();
};

// Two members that have joined, and what the first is to get of the second.
class NcclPairTest : public testing::Test {
 protected:
  struct Member {
    std::unique_ptr<Device> device = EmulatedDevice(4096);
    std::shared_ptr<Breaking> nccl = std::make_shared<Breaking>();
    Joined joined;
    std::unique_ptr<Group> group;
  };
  void SetUp() override {
    std::string token;
    for (int rank = 0; rank < 2; ++rank) {
      Member& member = members_[rank];
      GroupOptions options = {
          .id = 1, .rank = rank, .size = 2, .device = member.device.get(), .on_joined = [&member](absl::Status status) {
            member.joined.Set(std::move(status));
          }};
      const auto maker = NewNcclGroupMaker(member.nccl);
      ASSERT_OK_AND_ASSIGN(
          member.group, rank == 0 ? maker->Found(std::move(options), token) : maker->Join(std::move(options), token));
    }
    for (Member& member : members_) ASSERT_OK(member.joined.Wait());
  }
  // Which the second never gives.
  void EnqueueFirst() {
    ASSERT_OK_AND_ASSIGN(void* const memory, members_[0].device->Address({.offset_bytes = 0, .num_bytes = 64}));
    Exchange exchange = {.gives = {{}, {}}, .gets = {{}, {}}};
    exchange.gets[1].push_back(absl::MakeSpan(static_cast<std::byte*>(memory), 64));
    members_[0].group->Enqueue(GroupLane::kPull, std::move(exchange));
  }

  Member members_[2];
};

TEST_F(NcclPairTest, WhatBreaksBehindAnExchangeEndsTheGroup) {
  EnqueueFirst();
  // Behind it in the stream, so that it was issued when it breaks.
  members_[0].device->stream(StreamId::kIn).IssueNative([&](void*) {
    members_[0].nccl->broken = true;
    return absl::OkStatus();
  });
  EXPECT_OK(members_[0].device->stream(StreamId::kIn).Synchronize());
  EXPECT_THAT(members_[0].group->status(), StatusIs(StatusCode::kAborted, "remote process exited"));
}

// The thread that issues an exchange sees the same errors, and a worker that goes on alone after the one must after the
// other.
TEST_F(NcclPairTest, WhatBreaksWhileAnExchangeIsIssuedEndsTheGroupTheSameWay) {
  members_[0].nccl->breaks_next = true;
  EnqueueFirst();
  EXPECT_THAT(members_[0].device->stream(StreamId::kIn).Synchronize(),
              StatusIs(StatusCode::kAborted, "the group has ended: remote process exited"));
  EXPECT_THAT(members_[0].group->status(), StatusIs(StatusCode::kAborted, "remote process exited"));
}

TEST_F(NcclPairTest, AnExchangeThatNcclRefusesEndsTheGroup) {
  members_[0].nccl->refuses = true;
  EnqueueFirst();
  EXPECT_THAT(members_[0].device->stream(StreamId::kIn).Synchronize(),
              StatusIs(StatusCode::kAborted, "the group has ended: no connection"));
  EXPECT_THAT(members_[0].group->status(), StatusIs(StatusCode::kAborted, "no connection"));
}

}  // namespace
}  // namespace eps::worker
