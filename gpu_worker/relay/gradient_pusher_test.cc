#include "gpu_worker/relay/gradient_pusher.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/vnode_batch.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/fake_group.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

constexpr int64_t kWholeLayers = int64_t{1} << 30;
constexpr int64_t kChunkBytes = kChunkElems * int64_t{sizeof(float)};

// Keeps what is pushed.
class FakeTransport : public Transport {
 public:
  // From now on it has memory for gradients, from which it would send them.
  void HaveMemory(int64_t num_bytes) { memory_.resize(static_cast<size_t>(num_bytes)); }
  const std::vector<Contribution>& pushed() const { return pushed_; }
  bool is_own(absl::Span<const std::byte> payload) const {
    return !memory_.empty() && payload.data() >= memory_.data() && payload.data() < memory_.data() + memory_.size();
  }

  const std::byte* InPlace(BlobId, Version) const override { return nullptr; }
  absl::StatusOr<PullTiming> Await(BlobId, Version, ChunkRange) override {
    return absl::UnimplementedError("not here");
  }
  absl::StatusOr<PullTiming> Pull(BlobId, Version, ChunkRange, absl::Span<std::byte>) override {
    return absl::UnimplementedError("not here");
  }
  std::optional<PushMemory> NewPushMemory(int64_t num_bytes) override {
    if (memory_.empty()) return std::nullopt;
    return PushMemory{absl::MakeSpan(memory_).subspan(0, static_cast<size_t>(num_bytes)), nullptr};
  }
  void Push(Contribution contribution) override { pushed_.push_back(std::move(contribution)); }
  absl::Status Flush() override { return absl::OkStatus(); }
  void Cancel(absl::Status) override {}

 private:
  std::vector<std::byte> memory_;
  std::vector<Contribution> pushed_;
};

class GradientPusherTest : public ::testing::Test {
 protected:
  // A block of four chunks, whose push slot has the number of each element in it; wte, wpe and ln_f beside it.
  void Start(int64_t piece_bytes, std::vector<std::string> freeze = {}) {
    model_ = *BuildModel(
        {.num_layers = 1, .d_model = 256, .num_heads = 2, .context = 16, .vocab = 100, .freeze = std::move(freeze)});
    plan_.num_vnodes = kVnodes;
    plan_.gradient_slots.resize(3);
    plan_.push_slots.resize(1);
    plan_.host_push_bytes = int64_t{1} << 30;
    const int64_t slot_bytes = model_.max_layer_bytes(Dtype::kF32);
    const int64_t records_bytes = plan_.GroupFlagsOffset(RelayPlan::kGroupFlagTurns);
    device_ = NewCpuDevice({.arena_bytes = 3 * slot_bytes + records_bytes}).value();
    arena_.pushes = {static_cast<std::byte*>(device_->Address({0, slot_bytes}).value())};
    arena_.group_area = static_cast<std::byte*>(device_->Address({slot_bytes, 2 * slot_bytes}).value());
    arena_.records = static_cast<std::byte*>(device_->Address({3 * slot_bytes, records_bytes}).value());
    Fill(arena_.pushes[0], slot_bytes);
    Fill(arena_.group_area, 2 * slot_bytes);
    SetFlags(arena_.records + plan_.FlagsOffset(0), {1, 1, 1, 1});
    SetFlags(arena_.records + plan_.GroupFlagsOffset(1), {1, 1, 1, 1});
    flags_.assign(kVnodes, -1);
    transport_ = std::make_unique<FakeTransport>();
    pusher_ = std::make_unique<GradientPusher>(model_, plan_, *device_, *transport_, arena_, absl::MakeSpan(flags_),
                                               piece_bytes, /*is_awaited=*/nullptr);
    pass_.step = StepId(5);
    pass_.gradients = Dtype::kF32;
  }
  static void Fill(std::byte* to, int64_t num_bytes) {
    for (int64_t i = 0; i < num_bytes / int64_t{sizeof(float)}; ++i) {
      const auto value = static_cast<float>(i);
      std::memcpy(to + i * int64_t{sizeof(float)}, &value, sizeof(value));
    }
  }
  static void SetFlags(std::byte* to, const std::vector<int32_t>& flags) {
    std::memcpy(to, flags.data(), flags.size() * sizeof(int32_t));
  }
  absl::Status PushBlock() {
    step_ = {.kind = RelayStep::Kind::kPush, .layer = kBlock, .node = {0, kVnodes}, .push = 0, .flags = 0};
    pusher_->EnqueuePush(step_, pass_);
    return EndPass();
  }
  // This worker is the second of two that have two vnodes each.
  absl::Status PushPartOfBlock() {
    parts_ = std::make_unique<GroupParts>(*GroupParts::Make(
        model_, {.group = 1, .rank = 1, .vnodes = {{0, 1}, {2, 3}}},
        {.num_vnodes = kVnodes, .max_pass_vnodes = 2, .max_subtree_leaves = 4, .area_elems = kWholeLayers}));
    pass_.group = parts_.get();
    step_ = {.kind = RelayStep::Kind::kExchange, .layer = kBlock, .push = 0};
    step_.round = 0;
    step_.flag_turn = 1;
    pusher_->EnqueueExchange(step_, pass_, group_);
    pusher_->EnqueuePushPart(step_, pass_, group_);
    return EndPass();
  }
  absl::Status EndPass() {
    const absl::Status status = device_->stream(StreamId::kOut).Synchronize();
    EXPECT_TRUE(pusher_->EndPass().empty());
    return status;
  }
  const BlobSpec& block() const { return model_.blob(model_.layer(kBlock).blobs[0].blob); }
  // Of elements that count up from `first`.
  static void ExpectCountsFrom(int64_t first, const Contribution& pushed) {
    std::vector<float> values(pushed.payload.size() / sizeof(float));
    std::memcpy(values.data(), pushed.payload.data(), pushed.payload.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(first + static_cast<int64_t>(i)));
    }
  }

  static constexpr int kVnodes = 4;
  static constexpr LayerId kBlock{1};
  ModelSpec model_;
  RelayPlan plan_;
  std::unique_ptr<Device> device_;
  ArenaMap arena_;
  std::vector<int32_t> flags_;
  std::unique_ptr<FakeTransport> transport_;
  std::unique_ptr<GradientPusher> pusher_;
  PassContext pass_;
  RelayStep step_;
  std::unique_ptr<GroupParts> parts_;
  FakeGroup group_;
};

TEST_F(GradientPusherTest, WhatFitsOnePieceIsOneContributionForEachBlob) {
  Start(kWholeLayers);
  ASSERT_OK(PushBlock());
  ASSERT_EQ(transport_->pushed().size(), 1u);
  const Contribution& pushed = transport_->pushed()[0];
  EXPECT_EQ(pushed.step, StepId(5));
  EXPECT_EQ(pushed.blob, block().id);
  EXPECT_EQ(pushed.node, (TreeNode{0, kVnodes}));
  EXPECT_EQ(pushed.chunks, block().all_chunks());
  EXPECT_EQ(pushed.dtype, Dtype::kF32);
  EXPECT_EQ(pushed.nonfinite_vnode, -1);
  EXPECT_EQ(static_cast<int64_t>(pushed.payload.size()), block().num_elems * int64_t{sizeof(float)});
  ExpectCountsFrom(0, pushed);
}

TEST_F(GradientPusherTest, WhatDoesNotFitLeavesInWholeChunksOfTheSameMemory) {
  Start(2 * kChunkBytes);
  ASSERT_OK(PushBlock());
  ASSERT_EQ(transport_->pushed().size(), 2u);
  const std::byte* const memory = transport_->pushed()[0].payload.data();
  int64_t first = 0;
  for (const Contribution& pushed : transport_->pushed()) {
    EXPECT_EQ(pushed.chunks.count, 2);
    EXPECT_EQ(pushed.payload.data(), memory + first * int64_t{sizeof(float)});
    ExpectCountsFrom(first, pushed);
    first += static_cast<int64_t>(pushed.payload.size() / sizeof(float));
  }
  EXPECT_EQ(first, block().num_elems);
}

TEST_F(GradientPusherTest, FrozenBlobsAreNotPushed) {
  Start(kWholeLayers, {"transformer.h.0.mlp.*"});
  ASSERT_EQ(model_.layer(kBlock).blobs.size(), 2u);
  ASSERT_OK(PushBlock());
  ASSERT_EQ(transport_->pushed().size(), 1u);
  EXPECT_FALSE(model_.blob(transport_->pushed()[0].blob).frozen);
}

TEST_F(GradientPusherTest, TheTransportsOwnMemoryIsSentFromWithoutACopy) {
  Start(kChunkBytes);
  transport_->HaveMemory(model_.max_layer_bytes(Dtype::kF32));
  ASSERT_OK(PushBlock());
  ASSERT_EQ(transport_->pushed().size(), 4u);
  for (const Contribution& pushed : transport_->pushed()) EXPECT_TRUE(transport_->is_own(pushed.payload));
}

TEST_F(GradientPusherTest, TheLowestVnodeThatIsNotFiniteIsNamed) {
  Start(kWholeLayers);
  SetFlags(arena_.records + plan_.FlagsOffset(0), {1, 1, 0, 0});
  ASSERT_OK(PushBlock());
  EXPECT_EQ(transport_->pushed().at(0).nonfinite_vnode, 2);
}

TEST_F(GradientPusherTest, AMemberOfAGroupPushesTheSumOfItsPart) {
  Start(kWholeLayers);
  SetFlags(arena_.records + plan_.GroupFlagsOffset(1), {1, 1, 1, 0});
  ASSERT_OK(PushPartOfBlock());
  EXPECT_EQ(group_.pushes(), 1);
  ASSERT_EQ(transport_->pushed().size(), 1u);
  const Contribution& pushed = transport_->pushed()[0];
  EXPECT_EQ(pushed.node, (TreeNode{0, kVnodes}));
  EXPECT_EQ(pushed.chunks, PartOf(block().num_chunks(), /*rank=*/1, /*size=*/2));
  EXPECT_EQ(pushed.nonfinite_vnode, 3);
  const GroupParts::Place place = parts_->roots().at(0).place;
  ExpectCountsFrom(parts_->AreaElem(kBlock, place.rank, place.round), pushed);
}

TEST_F(GradientPusherTest, NothingIsPushedOfWhatAnExchangeThatWasCutShortLeft) {
  Start(kWholeLayers);
  group_.LoseAMember();
  EXPECT_THAT(PushPartOfBlock(), StatusIs(absl::StatusCode::kAborted, "member 0 is gone"));
  EXPECT_TRUE(transport_->pushed().empty());
}

}  // namespace
}  // namespace eps::worker
