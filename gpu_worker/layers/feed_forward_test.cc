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
