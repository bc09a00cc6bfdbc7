#include "common/formats/wire_layout.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(WireLayoutTest, TwoBuffersHoldEveryBlobInPullOrderWithoutAGap) {
  const ModelSpec model =
      BuildModel({.num_layers = 2, .d_model = 48, .num_heads = 3, .context = 20, .vocab = 100}).value();
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const WireLayout layout(model, dtype, 2);
    int64_t next = 0;
    for (const int64_t version : {0, 1}) {
      for (const BlobSpec& blob : model.blobs) {
        EXPECT_EQ(layout.offset_bytes(blob.id, Version(version)), next);
        EXPECT_EQ(next % (64 * SizeOf(dtype)), 0);
        next += blob.num_elems * SizeOf(dtype);
      }
    }
    EXPECT_EQ(layout.weights_bytes(), next);
    EXPECT_EQ(layout.weights_bytes(), 2 * model.num_elems() * SizeOf(dtype));
    EXPECT_EQ(layout.segment_bytes(), next + static_cast<int64_t>(model.blobs.size()) * 8);
  }
}

TEST(WireLayoutTest, AVersionLiesWhereTheVersionTwoBeforeItLay) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 64, .num_heads = 1, .context = 8, .vocab = 64}).value();
  const WireLayout layout(model, Dtype::kBf16, 2);
  for (const BlobSpec& blob : model.blobs) {
    EXPECT_EQ(layout.offset_bytes(blob.id, Version(5)), layout.offset_bytes(blob.id, Version(7)));
    EXPECT_EQ(layout.offset_bytes(blob.id, Version(5)) - layout.offset_bytes(blob.id, Version(6)),
              layout.weights_bytes() / 2);
  }
}

TEST(WireLayoutTest, WithOneBufferAllVersionsLieInOnePlace) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 64, .num_heads = 1, .context = 8, .vocab = 64, .freeze = {"*.bias"}})
          .value();
  const WireLayout one(model, Dtype::kBf16, 1), two(model, Dtype::kBf16, 2);
  for (const BlobSpec& blob : model.blobs) {
    EXPECT_EQ(one.offset_bytes(blob.id, Version(5)), one.offset_bytes(blob.id, Version(6)));
    EXPECT_EQ(one.offset_bytes(blob.id, Version(0)),
              two.offset_bytes(blob.id, Version(0)) - (blob.frozen ? 2 * model.num_trainable_elems() : 0));
  }
  EXPECT_EQ(one.weights_bytes(), 2 * model.num_elems());
}

TEST(WireLayoutTest, FrozenBlobsLieOnceBehindBothVersions) {
  const ModelSpec model =
      BuildModel(
          {.num_layers = 2, .d_model = 64, .num_heads = 1, .context = 8, .vocab = 64, .freeze = {"*.h.0.*", "*.bias"}})
          .value();
  const WireLayout layout(model, Dtype::kBf16, 2);
  int64_t trained = 0, frozen = 4 * model.num_trainable_elems();
  for (const BlobSpec& blob : model.blobs) {
    int64_t& next = blob.frozen ? frozen : trained;
    EXPECT_EQ(layout.offset_bytes(blob.id, Version(6)), next) << blob.name;
    EXPECT_EQ(layout.offset_bytes(blob.id, Version(7)), next + (blob.frozen ? 0 : 2 * model.num_trainable_elems()));
    next += 2 * blob.num_elems;
  }
  EXPECT_EQ(layout.weights_bytes(), frozen);
  EXPECT_EQ(frozen, 2 * (model.num_elems() + model.num_trainable_elems()));
}

TEST(WireLayoutTest, WhatLiesBehindAQuantizedBlobIsAligned) {
  const ModelSpec model = BuildModel({.num_layers = 3,
                                      .d_model = 40,
                                      .num_heads = 1,
                                      .context = 8,
                                      .vocab = 64,
                                      .freeze = {"*.h.*", "*.ln_f.*"},
                                      .frozen_format = QuantizedFormat::kMxInt8})
                              .value();
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const WireLayout layout(model, dtype, 2);
    int64_t next = 2 * model.num_trainable_elems() * SizeOf(dtype);
    int quantized = 0;
    for (const BlobSpec& blob : model.blobs) {
      if (!blob.frozen) continue;
      EXPECT_EQ(layout.offset_bytes(blob.id, Version(3)), next) << blob.name;
      EXPECT_EQ(next % (64 * SizeOf(dtype)), 0);
      const int64_t num_bytes = blob.is_quantized() ? blob.num_elems / 32 * 33 : blob.num_elems * SizeOf(dtype);
      next += (num_bytes + 255) / 256 * 256;
      quantized += blob.is_quantized() && num_bytes % 256 != 0 ? 1 : 0;
      if (!blob.is_quantized() && dtype == Dtype::kBf16) next -= (256 - num_bytes % 256) % 256;
    }
    EXPECT_EQ(quantized, 3);
    EXPECT_EQ(layout.weights_bytes(), next);
  }
}

TEST(WireLayoutTest, PublishedVersionsLieBehindTheWeightsInBlobOrder) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 64, .num_heads = 1, .context = 8, .vocab = 64}).value();
  const WireLayout layout(model, Dtype::kBf16, 2);
  std::vector<int64_t> memory(static_cast<size_t>(layout.segment_bytes()) / 8);
  const auto segment = absl::MakeSpan(reinterpret_cast<std::byte*>(memory.data()), memory.size() * 8);
  for (const BlobSpec& blob : model.blobs) layout.StorePublished(segment, blob.id, Version(100 + blob.id.value()));
  const int64_t* versions = memory.data() + layout.weights_bytes() / 8;
  for (const BlobSpec& blob : model.blobs) {
    EXPECT_EQ(layout.LoadPublished(segment, blob.id), Version(100 + blob.id.value()));
    EXPECT_EQ(versions[blob.id.value()], 100 + blob.id.value());
  }
  EXPECT_EQ(versions[-1], 0);  // the last weight
}

}  // namespace
}  // namespace eps
