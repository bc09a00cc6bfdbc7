#include "eps_server/store/store.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/fp8_block.h"
#include "common/numeric/quantized.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr BlobId kWte(0), kBlock(2);

RunConfig SmallRun(Dtype wire) {
  RunConfig run;
  run.model = {.num_layers = 2, .d_model = 32, .num_heads = 2, .context = 16, .vocab = 100};
  run.precision.wire = wire;
  return run;
}

struct Fixture {
  explicit Fixture(Dtype wire, OptimizerRule rule = OptimizerRule::kAdamW, double momentum = 0, int wire_versions = 2) {
    run = SmallRun(wire);
    run.precision.wire_versions = wire_versions;
    run.optimizer.rule = rule;
    run.optimizer.momentum = momentum;
    model = *BuildModel(run.model);
    store = *Store::Create(model, run);
  }
  RunConfig run;
  ModelSpec model;
  std::unique_ptr<Store> store;
};

std::vector<float> OddValues(int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = std::ldexp(1.0f + static_cast<float>(i) * 0x1.001p-9f, i % 40 - 20);
  values[1] = -values[1];
  values[2] = std::numeric_limits<float>::denorm_min();
  values[3] = -0.0f;
  return values;
}

class StoreTest : public ::testing::TestWithParam<Dtype> {};

// Masters of a frozen matrix are its wire form, whatever the run's wire dtype.
TEST_P(StoreTest, AQuantizedBlobHasItsOwnFormOnceForAllVersions) {
  for (const QuantizedFormat format : {QuantizedFormat::kMxInt8, QuantizedFormat::kNf4}) {
    RunConfig run = SmallRun(GetParam());
    run.model.freeze = {"transformer.h.1.*"};
    run.model.frozen_format = format;
    const ModelSpec model = *BuildModel(run.model);
    const std::unique_ptr<Store> store = *Store::Create(model, run);
    const auto blob =
        std::find_if(model.blobs.begin(), model.blobs.end(), [](const BlobSpec& b) { return b.is_quantized(); });
    ASSERT_NE(blob, model.blobs.end());
    const std::vector<float> values = OddValues(blob->num_elems);
    const size_t half = values.size() / 2 / kQuantizedBlockElems * kQuantizedBlockElems;
    const absl::Span<const float> all = values;
    EXPECT_OK(store->LoadMaster(blob->id, Version(3), static_cast<int64_t>(half), all.subspan(half)));
    EXPECT_OK(store->LoadMaster(blob->id, Version(3), 0, all.subspan(0, half)));
    std::vector<std::byte> want(static_cast<size_t>(QuantizedBytes(format, blob->num_elems)));
    EncodeQuantized(format, values, 0, blob->num_elems, want.data());
    store->Publish(blob->id, Version(3));
    store->Publish(blob->id, Version(4));
    for (const int64_t version : {3, 4}) {
      const absl::Span<const std::byte> wire = store->Wire(blob->id, Version(version));
      EXPECT_EQ(std::vector<std::byte>(wire.begin(), wire.end()), want);
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(store->Wire(blob->id, Version(3)).data()) % 64, 0u);
    std::vector<float> read(100), decoded(read.size());
    EXPECT_OK(store->ReadMaster(blob->id, Version(4), 37, absl::MakeSpan(read)));
    DecodeQuantized(format, want.data(), 37, blob->num_elems, absl::MakeSpan(decoded));
    EXPECT_EQ(read, decoded);
    const StoreSizes sizes = ComputeStoreSizes(model, run);
    EXPECT_EQ(sizes.quantized_bytes, (QuantizedBytes(format, blob->num_elems) + 255) / 256 * 256);
    EXPECT_EQ(sizes.total_bytes(), store->sizes().total_bytes());
  }
}

TEST_P(StoreTest, MasterIsExactAndWireIsItsRounding) {
  Fixture f(GetParam());
  const int64_t num_elems = f.model.blob(kBlock).num_elems;
  const std::vector<float> values = OddValues(num_elems);
  EXPECT_OK(f.store->LoadMaster(kBlock, Version(4), 0, values));
  std::vector<float> read(values.size());
  EXPECT_OK(f.store->ReadMaster(kBlock, Version(4), 0, absl::MakeSpan(read)));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(values[i])) << i;
  }
  f.store->Publish(kBlock, Version(4));
  const absl::Span<const std::byte> wire = f.store->Wire(kBlock, Version(4));
  ASSERT_EQ(static_cast<int64_t>(wire.size()), num_elems * SizeOf(GetParam()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(wire.data()) % 64, 0u);
  if (GetParam() == Dtype::kBf16) {
    const auto* bits = reinterpret_cast<const uint16_t*>(wire.data());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits[i], ToBf16(values[i]).bits) << i;
  }
  if (GetParam() == Dtype::kF16) {
    const auto* bits = reinterpret_cast<const uint16_t*>(wire.data());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits[i], ToFp16(values[i]).bits) << i;
  }
}

TEST_P(StoreTest, CarryOverMakesTheNextVersionEqualAndKeepsTheOld) {
  Fixture f(GetParam());
  const std::vector<float> values = OddValues(f.model.blob(kWte).num_elems);
  EXPECT_OK(f.store->LoadMaster(kWte, Version(0), 0, values));
  f.store->Publish(kWte, Version(0));
  f.store->CarryOver(kWte, Version(0));
  f.store->Publish(kWte, Version(1));
  EXPECT_EQ(f.store->Wire(kWte, Version(0)), f.store->Wire(kWte, Version(1)));
  EXPECT_NE(f.store->Wire(kWte, Version(0)).data(), f.store->Wire(kWte, Version(1)).data());
  std::vector<float> read(values.size());
  EXPECT_OK(f.store->ReadMaster(kWte, Version(1), 0, absl::MakeSpan(read)));
  EXPECT_EQ(read, values);
}

TEST_P(StoreTest, AFrozenBlobIsItsWireFormInOnePlaceForEveryVersion) {
  RunConfig run = SmallRun(GetParam());
  run.model.freeze = {"transformer.wte.weight"};
  const ModelSpec model = *BuildModel(run.model);
  const std::unique_ptr<Store> store = *Store::Create(model, run);
  ASSERT_TRUE(model.blob(kWte).frozen);
  const std::vector<float> values = OddValues(model.blob(kWte).num_elems);
  EXPECT_OK(store->LoadMaster(kWte, Version(3), 0, values));
  store->Publish(kWte, Version(3));
  store->Publish(kWte, Version(4));
  EXPECT_EQ(store->Wire(kWte, Version(3)).data(), store->Wire(kWte, Version(4)).data());
  std::vector<float> read(values.size());
  EXPECT_OK(store->ReadMaster(kWte, Version(4), 0, absl::MakeSpan(read)));
  for (size_t i = 0; i < values.size(); ++i) {
    const float want = GetParam() == Dtype::kBf16  ? ToFloat(ToBf16(values[i]))
                       : GetParam() == Dtype::kF16 ? ToFloat(ToFp16(values[i]))
                                                   : values[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(want)) << i;
  }
  // What was read makes the same wire form: so a checkpoint comes back as it was.
  const std::unique_ptr<Store> again = *Store::Create(model, run);
  EXPECT_OK(again->LoadMaster(kWte, Version(4), 0, read));
  EXPECT_EQ(again->Wire(kWte, Version(4)), store->Wire(kWte, Version(4)));
}

INSTANTIATE_TEST_SUITE_P(Wire, StoreTest, ::testing::Values(Dtype::kF32, Dtype::kBf16, Dtype::kF16));

TEST(StoreSizesTest, CountsEachParameterAsDocumented) {
  const ModelSpec model = *BuildModel(SmallRun(Dtype::kBf16).model);
  const auto bytes_per_elem = [&](Dtype wire, OptimizerRule rule, double momentum) {
    RunConfig run = SmallRun(wire);
    run.optimizer.rule = rule;
    run.optimizer.momentum = momentum;
    return ComputeStoreSizes(model, run).total_bytes() / model.num_elems();
  };
  EXPECT_EQ(bytes_per_elem(Dtype::kBf16, OptimizerRule::kAdamW, 0), 14);
  EXPECT_EQ(bytes_per_elem(Dtype::kF32, OptimizerRule::kAdamW, 0), 16);
  EXPECT_EQ(bytes_per_elem(Dtype::kF16, OptimizerRule::kAdamW, 0), 16);
  EXPECT_EQ(bytes_per_elem(Dtype::kBf16, OptimizerRule::kSgd, 0.9), 10);
  EXPECT_EQ(bytes_per_elem(Dtype::kBf16, OptimizerRule::kLion, 0), 10);
  EXPECT_EQ(bytes_per_elem(Dtype::kF32, OptimizerRule::kSgd, 0), 8);
  RunConfig run = SmallRun(Dtype::kBf16);
  run.precision.moments = MomentFormat::kBf16;
  EXPECT_EQ(ComputeStoreSizes(model, run).total_bytes(), 10 * model.num_elems());
  run.precision.moments = MomentFormat::kFp8;
  EXPECT_EQ(ComputeStoreSizes(model, run).total_bytes(), 8 * model.num_elems() + 2 * model.num_elems() / 32);
  run.precision.wire_versions = 1;
  EXPECT_EQ(ComputeStoreSizes(model, run).total_bytes(), 6 * model.num_elems() + 2 * model.num_elems() / 32);
}

TEST(StoreChunkTest, ReadsOneBufferAndWritesTheOther) {
  Fixture f(Dtype::kBf16);
  const ChunkState even = *f.store->Chunk(kBlock, 0, Version(6));
  const ChunkState odd = *f.store->Chunk(kBlock, 0, Version(7));
  EXPECT_EQ(even.wire_in, odd.wire_out);
  EXPECT_EQ(even.wire_out, odd.wire_in);
  EXPECT_EQ(even.rest, odd.rest);
  EXPECT_NE(even.moment1, nullptr);
  EXPECT_NE(even.moment2, nullptr);
  EXPECT_EQ(even.num_elems, f.model.blob(kBlock).num_elems);
  Fixture sgd(Dtype::kF32, OptimizerRule::kSgd, 0);
  const ChunkState plain = *sgd.store->Chunk(kBlock, 0, Version(0));
  EXPECT_EQ(plain.rest, nullptr);
  EXPECT_EQ(plain.master, nullptr);
  EXPECT_EQ(plain.moment1, nullptr);
}

TEST(StoreChunkTest, WithOneWireBufferAnUpdateWritesWhereItReads) {
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    Fixture f(wire, OptimizerRule::kAdamW, 0, /*wire_versions=*/1);
    EXPECT_EQ(f.store->wire_versions(), 1);
    const std::vector<float> values = OddValues(f.model.blob(kBlock).num_elems);
    EXPECT_OK(f.store->LoadMaster(kBlock, Version(6), 0, values));
    f.store->Publish(kBlock, Version(6));
    const ChunkState chunk = *f.store->Chunk(kBlock, 0, Version(6));
    EXPECT_EQ(chunk.wire_in, chunk.wire_out);
    EXPECT_EQ(chunk.wire_out, f.store->Wire(kBlock, Version(7)).data());
    f.store->CarryOver(kBlock, Version(6));
    std::vector<float> read(values.size());
    EXPECT_OK(f.store->ReadMaster(kBlock, Version(7), 0, absl::MakeSpan(read)));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(values[i])) << i;
    }
  }
}

TEST(StoreChunkTest, WithAnFp16WireTheMasterLiesBesideIt) {
  Fixture f(Dtype::kF16);
  const ChunkState even = *f.store->Chunk(kBlock, 0, Version(6));
  const ChunkState odd = *f.store->Chunk(kBlock, 0, Version(7));
  EXPECT_EQ(even.wire_in, odd.wire_out);
  EXPECT_EQ(even.rest, nullptr);
  ASSERT_NE(even.master, nullptr);
  EXPECT_EQ(even.master, odd.master);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(even.master) % 64, 0u);
}

TEST(StoreMomentTest, AreKeptApart) {
  Fixture f(Dtype::kBf16);
  EXPECT_OK(f.store->LoadMoment(kBlock, 0, 64, std::vector<float>{1, 2, 3}));
  EXPECT_OK(f.store->LoadMoment(kBlock, 1, 64, std::vector<float>{4, 5, 6}));
  EXPECT_EQ(ReadMoment(*f.store, f.model.blob(kBlock), 1, 64, 3), (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(ReadMoment(*f.store, f.model.blob(kBlock), 0, 63, 3), (std::vector<float>{0, 1, 2}));
}

TEST(StoreMomentTest, InBf16LieAt2BytesEachAndAreRoundedToNearestWhereTheyAreLoaded) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.precision.moments = MomentFormat::kBf16;
  const ModelSpec model = *BuildModel(run.model);
  const std::unique_ptr<Store> store = *Store::Create(model, run);
  EXPECT_EQ(store->moment_format(), MomentFormat::kBf16);
  EXPECT_OK(store->LoadMoment(kBlock, 0, 64, std::vector<float>{1, 1 + 0x1p-8f, 3}));
  EXPECT_OK(store->LoadMoment(kBlock, 1, 64, std::vector<float>{4, 5, 6}));
  EXPECT_EQ(ReadMoment(*store, model.blob(kBlock), 0, 63, 4), (std::vector<float>{0, 1, 1 + 0x1p-7f, 3}));
  EXPECT_EQ(ReadMoment(*store, model.blob(kBlock), 1, 64, 3), (std::vector<float>{4, 5, 6}));
  const int64_t num_elems = model.blob(kBlock).num_elems;
  EXPECT_EQ(MomentOf(*store, model.blob(kBlock), 0).size(), static_cast<size_t>(2 * num_elems));
  const ChunkState chunk = *store->Chunk(kBlock, 0, Version(0));
  EXPECT_EQ(chunk.moment_format, MomentFormat::kBf16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.moment1) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.moment2) % 64, 0u);
}

TEST(StoreMomentTest, InFp8LieInBlocksEachWithASharedExponent) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.precision.moments = MomentFormat::kFp8;
  const ModelSpec model = *BuildModel(run.model);
  const std::unique_ptr<Store> store = *Store::Create(model, run);
  // A value that is too small beside its neighbours, and is not in a block of its own.
  EXPECT_OK(store->LoadMoment(kBlock, 0, 64, std::vector<float>{1, -1.1f, 0x1p-20f}));
  EXPECT_OK(store->LoadMoment(kBlock, 0, 96, std::vector<float>{0x1p-20f}));
  EXPECT_OK(store->LoadMoment(kBlock, 1, 64, std::vector<float>{4, 5, 0}));
  EXPECT_EQ(ReadMoment(*store, model.blob(kBlock), 0, 63, 5), (std::vector<float>{0, 1, -1.125f, 0, 0}));
  EXPECT_EQ(ReadMoment(*store, model.blob(kBlock), 0, 95, 3), (std::vector<float>{0, 0x1p-20f, 0}));
  EXPECT_EQ(ReadMoment(*store, model.blob(kBlock), 1, 63, 4), (std::vector<float>{0, 4, 5, 0x1p-29f}));
  const int64_t num_elems = model.blob(kBlock).num_elems;
  EXPECT_EQ(MomentOf(*store, model.blob(kBlock), 0).size(), static_cast<size_t>(num_elems / 32 * 33));
  const ChunkState chunk = *store->Chunk(kBlock, 0, Version(0));
  EXPECT_EQ(chunk.moment_format, MomentFormat::kFp8);
  EXPECT_GE(static_cast<std::byte*>(chunk.moment2) - static_cast<std::byte*>(chunk.moment1), num_elems / 32 * 33);
}

TEST(StoreMomentTest, EachChunkHasItsPartInEveryFormat) {
  for (const MomentFormat format : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
    RunConfig run = SmallRun(Dtype::kBf16);
    run.precision.moments = format;
    run.model.d_model = 160;  // blocks of two chunks
    run.model.num_heads = 2;
    const ModelSpec model = *BuildModel(run.model);
    ASSERT_EQ(model.blob(kBlock).num_chunks(), 2);
    const std::unique_ptr<Store> store = *Store::Create(model, run);
    EXPECT_OK(store->LoadMoment(kBlock, 1, kChunkElems, std::vector<float>{2}));
    const ChunkState chunk = *store->Chunk(kBlock, 1, Version(0));
    EXPECT_NE(static_cast<std::byte*>(chunk.moment2)[format == MomentFormat::kFp32   ? 3
                                                     : format == MomentFormat::kBf16 ? 1
                                                                                     : 0],
              std::byte{0});
    EXPECT_EQ(ReadMoment(*store, model.blob(kBlock), 1, kChunkElems - 1, 2), (std::vector<float>{0, 2}));
  }
}

struct Answer {
  std::vector<absl::Status> got;
  std::function<void(absl::Status)> callback() {
    return [this](absl::Status status) { got.push_back(status); };
  }
};

TEST(StoreWaitTest, WakesAtItsVersionAndNotBefore) {
  Fixture f(Dtype::kF32);
  EXPECT_EQ(f.store->published(kWte), Version(-1));
  Answer first, second, now;
  f.store->WhenPublished(kWte, Version(0), first.callback());
  f.store->WhenPublished(kWte, Version(1), second.callback());
  EXPECT_TRUE(first.got.empty());
  f.store->Publish(kWte, Version(0));
  ASSERT_EQ(first.got.size(), 1u);
  EXPECT_OK(first.got[0]);
  EXPECT_TRUE(second.got.empty());
  f.store->Publish(kWte, Version(1));
  ASSERT_EQ(second.got.size(), 1u);
  EXPECT_OK(second.got[0]);
  f.store->WhenPublished(kWte, Version(0), now.callback());
  ASSERT_EQ(now.got.size(), 1u);
  EXPECT_OK(now.got[0]);
}

TEST(StoreWaitTest, OverwrittenVersionIsAborted) {
  Fixture f(Dtype::kF32);
  for (int version = 5; version <= 7; ++version) f.store->Publish(kWte, Version(version));
  Answer old, kept;
  f.store->WhenPublished(kWte, Version(5), old.callback());
  f.store->WhenPublished(kWte, Version(6), kept.callback());
  EXPECT_THAT(old.got.at(0), StatusIs(absl::StatusCode::kAborted, "version 5 of blob 0 was overwritten"));
  EXPECT_OK(kept.got.at(0));
}

TEST(StoreWaitTest, WithOneWireBufferTheVersionBeforeTheNewestIsGone) {
  Fixture f(Dtype::kF32, OptimizerRule::kAdamW, 0, /*wire_versions=*/1);
  for (int version = 5; version <= 7; ++version) f.store->Publish(kWte, Version(version));
  Answer old, kept;
  f.store->WhenPublished(kWte, Version(6), old.callback());
  f.store->WhenPublished(kWte, Version(7), kept.callback());
  EXPECT_THAT(old.got.at(0), StatusIs(absl::StatusCode::kAborted, "version 6 of blob 0 was overwritten"));
  EXPECT_OK(kept.got.at(0));
}

TEST(StoreWaitTest, VersionBeforeTheFirstIsAbortedThoughItsBufferIsThere) {
  Fixture f(Dtype::kF32);
  Answer waiting, before, first;
  f.store->WhenPublished(kWte, Version(4), waiting.callback());
  f.store->Publish(kWte, Version(5));  // as after a resume
  f.store->WhenPublished(kWte, Version(4), before.callback());
  f.store->WhenPublished(kWte, Version(5), first.callback());
  EXPECT_THAT(waiting.got.at(0), StatusIs(absl::StatusCode::kAborted, "version 4 of blob 0"));
  EXPECT_THAT(before.got.at(0), StatusIs(absl::StatusCode::kAborted, "the first is 5"));
  EXPECT_OK(first.got.at(0));
}

TEST(StoreWaitTest, CancelEndsWaitsNowAndLaterButNotWhatIsReadable) {
  Fixture f(Dtype::kF32);
  f.store->Publish(kWte, Version(0));
  Answer waiting, later, readable;
  f.store->WhenPublished(kWte, Version(1), waiting.callback());
  f.store->CancelWaiters(absl::UnavailableError("the run is over"));
  EXPECT_THAT(waiting.got.at(0), StatusIs(absl::StatusCode::kUnavailable, "the run is over"));
  f.store->WhenPublished(kWte, Version(2), later.callback());
  EXPECT_THAT(later.got.at(0), StatusIs(absl::StatusCode::kUnavailable, "the run is over"));
  f.store->WhenPublished(kWte, Version(0), readable.callback());
  EXPECT_OK(readable.got.at(0));
}

TEST(StoreWaitTest, WhoGivesUpIsForgottenAndNobodyElse) {
  Fixture f(Dtype::kF32);
  const auto kept_alive = std::make_shared<int>(0);
  Answer answer;
  const auto wait = [&](BlobId blob, const void* waiter) {
    f.store->WhenPublished(
        blob, Version(0), [kept_alive, done = answer.callback()](absl::Status status) { done(status); }, waiter);
  };
  const int first = 0, second = 0;
  wait(kWte, &first);
  wait(kWte, &second);
  wait(kBlock, &first);
  wait(kWte, nullptr);
  EXPECT_EQ(f.store->num_waits(), 4);
  f.store->GiveUpWaits(&first);
  EXPECT_EQ(f.store->num_waits(), 2);
  EXPECT_EQ(kept_alive.use_count(), 3);  // what they held is let go of
  f.store->Publish(kBlock, Version(0));
  EXPECT_TRUE(answer.got.empty());
  f.store->Publish(kWte, Version(0));
  EXPECT_EQ(answer.got.size(), 2u);
  f.store->GiveUpWaits(&second);  // over already
  EXPECT_EQ(f.store->num_waits(), 0);
}

TEST(StoreWaitTest, NonsenseFromAPeerIsAnError) {
  Fixture f(Dtype::kF32);
  Answer blob, negative, version;
  f.store->WhenPublished(BlobId(99), Version(0), blob.callback());
  f.store->WhenPublished(BlobId(-1), Version(0), negative.callback());
  f.store->WhenPublished(kWte, Version(-1), version.callback());
  EXPECT_THAT(blob.got.at(0), StatusIs(absl::StatusCode::kNotFound, "blob: 99"));
  EXPECT_THAT(negative.got.at(0), StatusIs(absl::StatusCode::kNotFound, "blob: -1"));
  EXPECT_THAT(version.got.at(0), StatusIs(absl::StatusCode::kInvalidArgument, "version: -1"));
}

TEST(StoreWaitTest, OnlyTheNextVersionCanBeAwaited) {
  Fixture f(Dtype::kF32);
  f.store->Publish(kWte, Version(3));
  Answer next, far;
  f.store->WhenPublished(kWte, Version(4), next.callback());
  f.store->WhenPublished(kWte, Version(5), far.callback());
  EXPECT_TRUE(next.got.empty());
  EXPECT_THAT(far.got.at(0), StatusIs(absl::StatusCode::kOutOfRange, "version: 5, the newest is 3"));
}

TEST_P(StoreTest, PaddingIsZero) {
  RunConfig run = SmallRun(GetParam());
  run.model.d_model = 24;  // no multiple of the alignment
  const ModelSpec model = *BuildModel(run.model);
  const std::unique_ptr<Store> store = *Store::Create(model, run);
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const int64_t end = tensor.offset_elems + tensor.num_elems();
      std::vector<float> padding(RoundUp(end, kTensorAlignElems) - end, 1.0f);
      EXPECT_OK(store->ReadMaster(blob.id, Version(0), end, absl::MakeSpan(padding)));
      for (const float value : padding) ASSERT_EQ(std::bit_cast<uint32_t>(value), 0u) << tensor.name;
    }
  }
}

// 53 chunks, more than there are frames for those on a disk.
RunConfig LargerRun(Dtype wire, MomentFormat moments) {
  RunConfig run;
  run.model = {.num_layers = 4, .d_model = 512, .num_heads = 2, .context = 16, .vocab = 100};
  run.precision = {.wire = wire, .moments = moments};
  return run;
}

// Masters and moments of one blob after the other, some elements at a time.
void Load(const ModelSpec& model, Store& store) {
  for (const BlobSpec& blob : model.blobs) {
    constexpr int64_t kPart = 300'000 / kFp8BlockElems * kFp8BlockElems;  // no part is a chunk
    for (int64_t first = 0; first < blob.num_elems; first += kPart) {
      std::vector<float> values(static_cast<size_t>(std::min(kPart, blob.num_elems - first)));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>((first + static_cast<int64_t>(i)) * 7919 % 10007) * 0x1p-13f;
      }
      ASSERT_OK(store.LoadMaster(blob.id, Version(0), first, values));
      for (int which = 0; which < store.num_moments(); ++which) {
        ASSERT_OK(store.LoadMoment(blob.id, which, first, values));
      }
    }
    store.Publish(blob.id, Version(0));
  }
}

TEST_P(StoreTest, WhatLiesOnADiskIsWhatItWouldBeInMemory) {
  for (const MomentFormat moments : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
    const TempDir dir;
    RunConfig run = LargerRun(GetParam(), moments);
    const ModelSpec model = *BuildModel(run.model);
    const std::unique_ptr<Store> in_memory = *Store::Create(model, run);
    const int64_t state_bytes = in_memory->sizes().state_bytes();
    run.optimizer_offload = {.path = dir.path(), .memory_bytes = state_bytes / 10};
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Store> on_disk, Store::Create(model, run));
    EXPECT_EQ(on_disk->sizes().total_bytes(), ComputeStoreSizes(model, run).total_bytes());
    EXPECT_LT(on_disk->sizes().state_bytes(), state_bytes * 8 / 10);
    for (Store* store : {in_memory.get(), on_disk.get()}) {
      Load(model, *store);
      for (const BlobSpec& blob : model.blobs) {
        for (int64_t chunk = blob.num_chunks() - 1; chunk >= 0; --chunk) {
          store->Prefetch(blob.id, std::max<int64_t>(chunk - 1, 0));
          ASSERT_OK_AND_ASSIGN(const ChunkState state, store->Chunk(blob.id, chunk, Version(0)));
          const auto size = static_cast<size_t>(MomentBytes(moments, state.num_elems));
          std::memset(state.moment2, static_cast<int>(chunk + 1), size / 2);
          if (state.rest != nullptr) state.rest[5] = 77;
          if (state.master != nullptr) state.master[5] = 77;
        }
      }
    }
    EXPECT_GT(on_disk->paging().written_bytes, 0);
    EXPECT_GT(on_disk->paging().read_bytes, 0);
    for (const BlobSpec& blob : model.blobs) {
      for (int64_t chunk = 0; chunk < blob.num_chunks(); ++chunk) {
        const int64_t num_elems = blob.chunk_elems(chunk);
        std::vector<std::byte> want(static_cast<size_t>(4 * num_elems + 2 * MomentBytes(moments, num_elems)));
        std::vector<std::byte> got(want.size());
        ASSERT_OK(in_memory->ReadChunk(blob.id, chunk, Version(0), absl::MakeSpan(want)));
        ASSERT_OK(on_disk->ReadChunk(blob.id, chunk, Version(0), absl::MakeSpan(got)));
        ASSERT_TRUE(want == got) << blob.name << " " << chunk;
      }
      std::vector<float> want(static_cast<size_t>(blob.num_elems - 9)), got(want.size());
      ASSERT_OK(in_memory->ReadMaster(blob.id, Version(0), 9, absl::MakeSpan(want)));
      ASSERT_OK(on_disk->ReadMaster(blob.id, Version(0), 9, absl::MakeSpan(got)));
      ASSERT_TRUE(want == got) << blob.name;
    }
  }
}

// Frames for the largest chunk's part would take more than lies on the disk.
TEST(StoreSizesTest, NothingIsOffloadedWhereThatSavesNoMemory) {
  RunConfig run = LargerRun(Dtype::kBf16, MomentFormat::kFp32);
  const ModelSpec model = *BuildModel(run.model);
  const int64_t total_bytes = ComputeStoreSizes(model, run).total_bytes(), state_bytes = 10 * model.num_elems();
  run.optimizer_offload.path = "/no/such/folder";
  EXPECT_LT(ComputeStoreSizes(model, run).total_bytes(), total_bytes - 40'000'000);
  for (const int64_t memory_bytes : {state_bytes - 31 * 10 * kChunkElems, state_bytes - 1, state_bytes}) {
    run.optimizer_offload.memory_bytes = memory_bytes;
    EXPECT_EQ(ComputeStoreSizes(model, run).total_bytes(), total_bytes) << memory_bytes;
    EXPECT_EQ(ComputeStoreSizes(model, run).disk_bytes, 0);
    EXPECT_OK(Store::Create(model, run));
  }
}

TEST(StoreCreateTest, NamesTheFieldOfAFolderThatIsNotThere) {
  const TempDir dir;
  RunConfig run = LargerRun(Dtype::kBf16, MomentFormat::kFp32);
  run.optimizer_offload.path = dir.File("gone");
  EXPECT_THAT(Store::Create(*BuildModel(run.model), run),
              StatusIs(absl::StatusCode::kNotFound, "optimizer_offload.path: cannot make a file in"));
}

TEST(StoreCreateTest, SaysHowMuchMemoryIsMissing) {
  RunConfig run = SmallRun(Dtype::kF32);
  ModelSpec model = *BuildModel(run.model);
  model.blobs[0].num_elems = int64_t{1} << 50;
  EXPECT_THAT(Store::Create(model, run), StatusIs(absl::StatusCode::kResourceExhausted, "model state: 1801439"));
}

}  // namespace
}  // namespace eps::server
