#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu_worker/layers/layers_testing.h"
#include "gtest/gtest.h"

// A block whose feed-forward part is computed in tiles; its sizes and bits: layers_test.cc.

namespace eps::worker {
namespace {

struct TiledResult {
  std::vector<float> y, dx, gradient;
};
TiledResult RunBlock(const ModelSpec& model, const LayerCase& c) {
  BlockInArena block(model, c);
  float* gradient = block.TakeZeros(block.layer.num_elems);
  block.Forward();
  TiledResult both{.y = {block.y, block.y + block.boundary_elems}};
  block.Backward(gradient);
  both.dx.assign(block.y, block.y + block.boundary_elems);
  both.gradient.assign(gradient, gradient + block.layer.num_elems);
  return both;
}

// The same random numbers too: with others masks of dropout would part them by far.
TEST(FeedForwardTest, InTilesABlockGivesWhatItGivesAsAWhole) {
  for (const LayerCase& c : CasesInTiles()) {
    ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(c.config));
    LayerCase whole = c;
    whole.feed_forward_tile = 0;
    const TiledResult tiled = RunBlock(model, c), wanted = RunBlock(model, whole);
    EXPECT_LT(Distance(tiled.y, wanted.y), 1e-6);
    EXPECT_LT(Distance(tiled.dx, wanted.dx), 1e-6);
    EXPECT_LT(Distance(tiled.gradient, wanted.gradient), 1e-6);
    EXPECT_NE(std::memcmp(tiled.gradient.data(), wanted.gradient.data(), tiled.gradient.size() * sizeof(float)), 0)
        << "summed in the same order: were there tiles at all?";
  }
}

// Where sums over rows alone want scratch, by their number.
KernelSizes WithScratchOfSums(int64_t (*by_rows)(int64_t rows, int64_t width)) {
  KernelSizes sizes = CpuKernelSizes();
  sizes.attention_backward = [](int64_t, int64_t, int64_t, int64_t) -> int64_t { return 0; };
  sizes.layer_norm_backward = sizes.rms_norm_backward = sizes.column_sum = by_rows;
  return sizes;
}

TEST(FeedForwardTest, KernelsHaveWhatEachTileWantsOfScratchThoughMoreRowsMayWantLess) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 8, .num_heads = 1, .context = 100, .vocab = 8}).value();
  const LayerShape shape = MakeLayerShape(model, {.feed_forward_tile = 64}, Dtype::kF32, Dtype::kF32);
  const auto bytes = [&](int64_t (*by_rows)(int64_t, int64_t)) {
    return BlockBackwardScratchBytes(shape, WithScratchOfSums(by_rows));
  };
  const int64_t none = bytes([](int64_t, int64_t) -> int64_t { return 0; });
  EXPECT_EQ(bytes([](int64_t rows, int64_t) -> int64_t { return rows == 100 ? 1000 : 0; }), none + 1000);
  EXPECT_EQ(bytes([](int64_t rows, int64_t) -> int64_t { return rows == 64 ? 1000 : 0; }), none + 1000);
  EXPECT_EQ(bytes([](int64_t rows, int64_t) -> int64_t { return rows == 36 ? 1000 : 0; }), none + 1000);
}

TEST(FeedForwardTest, ATileThatWantsMoreScratchThanAllRowsStaysWithinItsOwn) {
  const LayerCase c{.config = {.num_layers = 1, .d_model = 16, .num_heads = 2, .context = 8, .vocab = 11},
                    .micro_batch = 265,
                    .feed_forward_tile = 2048};
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(c.config));
  const KernelSizes sizes = CpuKernelSizes();
  ASSERT_GT(sizes.column_sum(2048, 16), sizes.column_sum(2120, 16));
  RunBlock(model, c);  // looks at its guards
}

TEST(FeedForwardTest, ATileOfAllRowsIsNone) {
  LayerCase c = CasesInTiles().front();
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(c.config));
  c.feed_forward_tile = 0;
  const TiledResult whole = RunBlock(model, c);
  c.feed_forward_tile = 64;
  const TiledResult tiled = RunBlock(model, c);
  EXPECT_EQ(tiled.y, whole.y);
  EXPECT_EQ(tiled.dx, whole.dx);
  EXPECT_EQ(tiled.gradient, whole.gradient);
}

}  // namespace
}  // namespace eps::worker
