#include "gpu_worker/relay/weight_puller.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/vnode_batch.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/device_with_memory_of_its_own.h"
#include "gpu_worker/relay/fake_group.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/relay/pass_weights.h"
#include "gpu_worker/relay/pull_clock.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Version kVersion(7);
constexpr std::byte kUntouched{0xEE};

bool IsFullOf(absl::Span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte byte) { return byte == value; });
}

// A blob is full of its number, with the daemon as on the wire.
class PullTransport : public Transport {
 public:
  explicit PullTransport(const ModelSpec* model) : model_(*model) {}

  // From now on the weights lie in this host's memory.
  void PutInPlace() {
    for (const BlobSpec& blob : model_.blobs) {
      places_.emplace_back(static_cast<size_t>(blob.num_elems * 4), std::byte(blob.id.value()));
    }
  }
  void FailWith(absl::Status error) { error_ = std::move(error); }
  // What was asked for, in order.
  const std::vector<std::string>& calls() const { return calls_; }

  const std::byte* InPlace(BlobId blob, Version) const override {
    return places_.empty() ? nullptr : places_[static_cast<size_t>(blob.value())].data();
  }
  absl::StatusOr<PullTiming> Await(BlobId blob, Version version, ChunkRange chunks) override {
    calls_.push_back(absl::StrCat("await ", model_.blob(blob).name, " v", version.value(), ", ", DebugString(chunks)));
    if (!error_.ok()) return error_;
    return PullTiming();
  }
  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override {
    calls_.push_back(absl::StrCat("pull ", model_.blob(blob).name, " v", version.value(), ", ", DebugString(chunks)));
    if (!error_.ok()) return error_;
    EXPECT_EQ(static_cast<int64_t>(destination.size()), model_.blob(blob).part_bytes(chunks, Dtype::kF32));
    std::fill(destination.begin(), destination.end(), std::byte(blob.value()));
    return PullTiming();
  }
  void Push(Contribution) override {}
  absl::Status Flush() override { return absl::OkStatus(); }
  void Cancel(absl::Status) override {}

 private:
  const ModelSpec& model_;
  std::vector<std::vector<std::byte>> places_;  // by blob
  absl::Status error_;
  std::vector<std::string> calls_;
};

class WeightPullerTest : public ::testing::Test {
 protected:
  // A block of four chunks; wte, wpe and ln_f beside it.
  void Start(bool own_memory, bool in_place, std::vector<std::string> freeze = {},
             std::optional<QuantizedFormat> form = std::nullopt) {
    model_ = *BuildModel({.num_layers = 1,
                          .d_model = 256,
                          .num_heads = 2,
                          .context = 16,
                          .vocab = 100,
                          .freeze = std::move(freeze),
                          .frozen_format = form});
    const int64_t slot_bytes = model_.max_layer_bytes(Dtype::kF32) + kArenaAlignBytes;  // and what lies behind
    device_ = NewCpuDevice({.arena_bytes = slot_bytes}).value();
    if (own_memory) device_ = std::make_unique<DeviceWithMemoryOfItsOwn>(std::move(device_));
    arena_.weights = {static_cast<std::byte*>(device_->Address({0, slot_bytes}).value())};
    std::fill_n(arena_.weights[0], slot_bytes, kUntouched);
    transport_ = std::make_unique<PullTransport>(&model_);
    if (in_place) transport_->PutInPlace();
    puller_ = std::make_unique<WeightPuller>(model_, *device_, *transport_, arena_, Dtype::kF32, clock_);
    pass_.shape.wire = pass_.shape.compute = Dtype::kF32;
    pass_.weights = puller_->Find(kVersion).value();
  }
  // This worker is the second of two.
  void FormGroup() {
    parts_ = std::make_unique<GroupParts>(*GroupParts::Make(model_, {.group = 1, .rank = 1, .vnodes = {{0}, {1}}},
                                                            {.num_vnodes = 2, .area_elems = int64_t{1} << 24}));
    pass_.group = parts_.get();
  }
  absl::Status Pull(LayerId layer) {
    const RelayStep step = {.kind = RelayStep::Kind::kPull, .layer = layer, .weights = 0};
    puller_->Enqueue(step, pass_, pass_.group == nullptr ? nullptr : &group_);
    return device_->stream(StreamId::kIn).Synchronize();
  }
  // The only block's.
  absl::Span<const std::byte> SlotOf(const BlobUse& use, int64_t first_elem, int64_t num_elems) const {
    return absl::MakeConstSpan(arena_.weights[0] + (use.offset_elems + first_elem) * 4,
                               static_cast<size_t>(num_elems * 4));
  }
  absl::Span<const std::byte> SlotOf(const BlobUse& use) const {
    return SlotOf(use, 0, model_.blob(use.blob).num_elems);
  }
  const std::vector<BlobUse>& block() const { return model_.layer(kBlock).blobs; }

  static constexpr LayerId kEmbedding{0}, kBlock{1};
  ModelSpec model_;
  std::unique_ptr<Device> device_;
  ArenaMap arena_;
  std::unique_ptr<PullTransport> transport_;
  PullClock clock_;
  std::unique_ptr<WeightPuller> puller_;
  PassContext pass_;
  std::unique_ptr<GroupParts> parts_;
  FakeGroup group_;
};

TEST_F(WeightPullerTest, WhatKernelsReadInPlaceIsOnlyWaitedForAndNotExchanged) {
  Start(/*own_memory=*/false, /*in_place=*/true);
  EXPECT_EQ(pass_.weights.source, WeightSource::kInPlace);
  FormGroup();
  ASSERT_OK(Pull(kEmbedding));
  ASSERT_OK(Pull(kBlock));
  EXPECT_THAT(transport_->calls(),
              ElementsAre("await wte v7, chunk 0", "await wpe v7, chunk 0", "await h.0 v7, chunks 0..3"));
  EXPECT_TRUE(IsFullOf(SlotOf(block()[0]), kUntouched));
  EXPECT_EQ(group_.pulls(), 0);
}

TEST_F(WeightPullerTest, ABlockOfSeveralBlobsInPlaceIsCopiedWholeToItsSlot) {
  Start(/*own_memory=*/false, /*in_place=*/true, {"transformer.h.0.mlp.*"});
  FormGroup();
  ASSERT_EQ(block().size(), 2u);
  ASSERT_OK(Pull(kBlock));
  EXPECT_THAT(transport_->calls(), ElementsAre(HasSubstr("pull h.0 v7, chunks 0.."), HasSubstr("pull h.0.frozen v7")));
  for (const BlobUse& use : block()) EXPECT_TRUE(IsFullOf(SlotOf(use), std::byte(use.blob.value())));
  EXPECT_EQ(group_.pulls(), 0);
}

TEST_F(WeightPullerTest, ADeviceWithMemoryOfItsOwnCopiesWhatIsInPlace) {
  Start(/*own_memory=*/true, /*in_place=*/true);
  EXPECT_EQ(pass_.weights.source, WeightSource::kCopied);
  ASSERT_OK(Pull(kBlock));
  EXPECT_THAT(transport_->calls(), ElementsAre("await h.0 v7, chunks 0..3"));
  EXPECT_TRUE(IsFullOf(SlotOf(block()[0]), std::byte(block()[0].blob.value())));
}

TEST_F(WeightPullerTest, WhatIsNowhereIsPulledToTheSlotOrByWayOfTheHost) {
  for (const bool own_memory : {false, true}) {
    Start(own_memory, /*in_place=*/false);
    EXPECT_EQ(pass_.weights.source, own_memory ? WeightSource::kStaged : WeightSource::kPulled);
    EXPECT_TRUE(pass_.weights.addresses.empty());
    ASSERT_OK(Pull(kBlock));
    EXPECT_THAT(transport_->calls(), ElementsAre("pull h.0 v7, chunks 0..3"));
    EXPECT_TRUE(IsFullOf(SlotOf(block()[0]), std::byte(block()[0].blob.value())));
  }
}

TEST_F(WeightPullerTest, AMemberOfAGroupGetsItsPartAndExchangesTheRest) {
  const auto run = [&](bool own_memory, bool in_place) {
    SCOPED_TRACE(absl::StrCat(own_memory, in_place));
    group_ = FakeGroup();
    Start(own_memory, in_place);
    FormGroup();
    ASSERT_OK(Pull(kBlock));
    EXPECT_EQ(transport_->calls().front(), absl::StrCat(in_place ? "await" : "pull", " h.0 v7, chunks 2..3"));
    const BlobSpec& blob = model_.blob(block()[0].blob);
    const int64_t first = blob.part_first_elem({2, 2});
    EXPECT_TRUE(IsFullOf(SlotOf(block()[0], 0, first), kUntouched));
    EXPECT_TRUE(IsFullOf(SlotOf(block()[0], first, blob.num_elems - first), std::byte(blob.id.value())));
    EXPECT_EQ(group_.pulls(), 1);
  };
  run(/*own_memory=*/false, /*in_place=*/false);
  run(/*own_memory=*/true, /*in_place=*/false);
  run(/*own_memory=*/true, /*in_place=*/true);
}

// It lies last in the slot, in its own bytes.
TEST_F(WeightPullerTest, AQuantizedBlobIsPulledAsItIsWholeOrAMembersPart) {
  for (const bool own_memory : {false, true}) {
    for (const bool in_place : {false, true}) {
      if (in_place && !own_memory) continue;  // read there
      for (const bool is_member : {false, true}) {
        SCOPED_TRACE(absl::StrCat(own_memory, in_place, is_member));
        group_ = FakeGroup();
        pass_.group = nullptr;
        Start(own_memory, in_place, {"transformer.h.0.mlp.*"}, QuantizedFormat::kMxInt8);
        if (is_member) FormGroup();
        ASSERT_EQ(block().size(), 3u);
        const BlobUse& use = block()[2];
        const BlobSpec& blob = model_.blob(use.blob);
        ASSERT_TRUE(blob.is_quantized() && blob.num_chunks() == 2);
        ASSERT_OK(Pull(kBlock));
        const std::byte* const begin = arena_.weights[0] + use.offset_elems * 4;
        const int64_t own = is_member ? QuantizedBytes(QuantizedFormat::kMxInt8, kQuantizedRunElems) : 0,
                      end = QuantizedBytes(QuantizedFormat::kMxInt8, blob.num_elems);
        const auto bytes = [&](int64_t first, int64_t count) {
          return absl::MakeConstSpan(begin + first, static_cast<size_t>(count));
        };
        EXPECT_TRUE(IsFullOf(bytes(0, own), kUntouched));
        EXPECT_TRUE(IsFullOf(bytes(own, end - own), std::byte(blob.id.value())));
        EXPECT_TRUE(IsFullOf(bytes(end, 64), kUntouched));
        EXPECT_EQ(group_.pulls(), is_member ? 1 : 0);
      }
    }
  }
}

TEST_F(WeightPullerTest, NothingIsComputedWithWhatAnExchangeThatWasCutShortLeft) {
  Start(/*own_memory=*/false, /*in_place=*/false);
  FormGroup();
  group_.LoseAMember();
  EXPECT_THAT(Pull(kBlock), StatusIs(absl::StatusCode::kAborted, "member 0 is gone"));
}

TEST_F(WeightPullerTest, APullThatFailsEndsTheGroupAndNamesItsBlobAndVersion) {
  for (const bool in_place : {false, true}) {
    group_ = FakeGroup();
    Start(/*own_memory=*/true, in_place);
    FormGroup();
    transport_->FailWith(absl::UnavailableError("the daemon is gone"));
    const absl::Status failure = Pull(kBlock);
    EXPECT_THAT(std::string(failure.message()),
                testing::MatchesRegex("pull of blob h\\.0, version [0-9]+: the daemon is gone"));
    EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(group_.status(), failure);
  }
}

}  // namespace
}  // namespace eps::worker
