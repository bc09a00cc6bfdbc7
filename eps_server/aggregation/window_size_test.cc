#include "eps_server/aggregation/window_size.h"

#include <utility>

#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// Its largest blob is a block.
ModelSpec Blocks() {
  return *BuildModel({.num_layers = 2, .d_model = 64, .num_heads = 2, .context = 16, .vocab = 100});
}
// Its largest blob is the token table, which embedding and head use.
ModelSpec Tied() { return *BuildModel({.num_layers = 2, .d_model = 64, .num_heads = 2, .context = 16, .vocab = 5000}); }

TEST(WindowSizeTest, ItIsFourTimesTheLargestBlobInFp32AtLeast) {
  EXPECT_EQ(DefaultWindowBytes(Blocks(), 4, Dtype::kBf16, 1), 16 * Blocks().blobs[2].num_elems);
  for (const int workers : {1, 2, 3}) {
    EXPECT_EQ(DefaultWindowBytes(Tied(), 4, Dtype::kBf16, workers), 16 * Tied().blobs[0].num_elems) << workers;
  }
}

TEST(WindowSizeTest, OfManyItHasWhatAllPushOfTwoLayersAndWhatWaitsForTheEmbedding) {
  const ModelSpec blocks = Blocks(), tied = Tied();
  const int64_t block = blocks.blobs[2].num_elems, table = tied.blobs[0].num_elems;
  // Four sums of four vnodes each, in fp32; eight times two leaves in bf16.
  for (const auto& [workers, pushed] : {std::pair(4, 4 * 4), std::pair(8, 16 * 2)}) {
    EXPECT_EQ(DefaultWindowBytes(blocks, 16, Dtype::kBf16, workers), (2 * block + blocks.blobs[0].num_elems) * pushed);
    EXPECT_EQ(DefaultWindowBytes(tied, 16, Dtype::kBf16, workers), 2 * table * pushed);
  }
  // More workers than vnodes push no more.
  EXPECT_EQ(DefaultWindowBytes(tied, 16, Dtype::kF32, 100), 2 * table * 16 * 4);
}

TEST(WindowSizeTest, WhatIsFrozenComesFromNobody) {
  ModelSpec tied = Tied();
  tied.blobs[0].frozen = true;
  EXPECT_EQ(DefaultWindowBytes(tied, 16, Dtype::kBf16, 8), 2 * tied.blobs[2].num_elems * 32);
}

}  // namespace
}  // namespace eps::server
