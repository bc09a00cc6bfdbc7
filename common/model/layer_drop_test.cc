#include "common/model/layer_drop.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ModelSpec Model(int64_t layers, uint64_t seed = 7, std::vector<std::string> freeze = {}) {
  return BuildModel({.num_layers = layers,
                     .d_model = 8,
                     .num_heads = 2,
                     .context = 4,
                     .vocab = 16,
                     .init_seed = seed,
                     .freeze = std::move(freeze)})
      .value();
}

std::vector<int> Values(const std::vector<LayerId>& layers) {
  std::vector<int> values;
  for (const LayerId layer : layers) values.push_back(layer.value());
  return values;
}

TEST(LayerDropTest, NothingIsDroppedUnlessItIsOn) {
  const ModelSpec model = Model(12);
  for (int step = 0; step < 100; ++step) EXPECT_TRUE(LayerDrop(model, {}).DroppedIn(StepId(step)).empty());
}

// Bits of every run with dropping hang on these.
TEST(LayerDropTest, WhatIsDroppedIsFixedForEver) {
  const ModelSpec model = Model(6);
  const LayerDrop uniform(model, {.share = 0.4}), linear(model, {.share = 0.4, .rule = DropRule::kLinear});
  // By step, from 0; of tests/harness/layer_drop.py.
  const std::vector<std::vector<int>> want_uniform = {{1},          {1, 3, 5}, {1, 3, 6}, {1, 4, 6},
                                                      {2, 3, 4, 5}, {1, 6},    {2, 4, 6}, {1, 2, 3}};
  const std::vector<std::vector<int>> want_linear = {{}, {}, {6}, {4, 6}, {3, 4, 5}, {6}, {2, 4, 6}, {3}};
  for (int step = 0; step < 8; ++step) {
    EXPECT_EQ(Values(uniform.DroppedIn(StepId(step))), want_uniform[static_cast<size_t>(step)]) << step;
    EXPECT_EQ(Values(linear.DroppedIn(StepId(step))), want_linear[static_cast<size_t>(step)]) << step;
  }
}

TEST(LayerDropTest, EachBlockIsDroppedAsOftenAsItsShareSays) {
  constexpr int kSteps = 20000, kBlocks = 5;
  const ModelSpec model = Model(kBlocks);
  for (const DropRule rule : {DropRule::kUniform, DropRule::kLinear}) {
    const LayerDrop drop(model, {.share = 0.3, .rule = rule});
    std::vector<int> counts(kBlocks + 2);
    for (int step = 0; step < kSteps; ++step) {
      for (const LayerId layer : drop.DroppedIn(StepId(step))) ++counts[static_cast<size_t>(layer.value())];
    }
    EXPECT_EQ(counts.front(), 0);
    EXPECT_EQ(counts.back(), 0);
    for (int block = 1; block <= kBlocks; ++block) {
      const double share = rule == DropRule::kUniform ? 0.3 : 0.3 * block / kBlocks;
      EXPECT_DOUBLE_EQ(drop.ShareOf(LayerId(block)), share);
      // 4 standard deviations, and what the one that always stays takes away: 0.3^5
      EXPECT_NEAR(counts[static_cast<size_t>(block)], share * kSteps, 4 * 65 + 0.00243 * kSteps) << block;
    }
  }
}

TEST(LayerDropTest, AnotherSeedOrStepOrLayerDropsAnew) {
  const ModelSpec model = Model(64), other = Model(64, 8);
  const LayerDrop drop(model, {.share = 0.5});
  EXPECT_NE(drop.DroppedIn(StepId(3)), drop.DroppedIn(StepId(4)));
  EXPECT_NE(drop.DroppedIn(StepId(3)), LayerDrop(other, {.share = 0.5}).DroppedIn(StepId(3)));
  EXPECT_EQ(drop.DroppedIn(StepId(3)), LayerDrop(model, {.share = 0.5}).DroppedIn(StepId(3)));
}

TEST(LayerDropTest, ABlockAlwaysRuns) {
  for (const int64_t layers : {1, 2, 3}) {
    const LayerDrop drop(Model(layers), {.share = 0.99});
    std::vector<int> stayed(static_cast<size_t>(layers));
    for (int step = 0; step < 1000; ++step) {
      const std::vector<int> dropped = Values(drop.DroppedIn(StepId(step)));
      ASSERT_LT(dropped.size(), static_cast<size_t>(layers));
      for (int layer = 1; layer <= layers; ++layer) {
        stayed[static_cast<size_t>(layer - 1)] += std::find(dropped.begin(), dropped.end(), layer) == dropped.end();
      }
    }
    for (const int times : stayed) EXPECT_GT(times, 200);  // none is preferred
  }
}

TEST(LayerDropTest, WhereSomeBlocksTrainOneOfThemRuns) {
  const ModelSpec model = Model(4, 7,
                                {"transformer.wte.*", "transformer.wpe.*", "transformer.ln_f.*", "transformer.h.0.*",
                                 "transformer.h.2.*", "transformer.h.3.*"});
  const LayerDrop drop(model, {.share = 0.9});
  for (int step = 0; step < 200; ++step) {
    for (const LayerId layer : drop.DroppedIn(StepId(step))) EXPECT_NE(layer, LayerId(2));
  }
}

TEST(LayerDropTest, OnAverageItDropsAsManyAsTheSharesSaySpreadAsTheyAre) {
  const ModelSpec model = Model(8);
  EXPECT_EQ(Values(LayerDrop(model, {.share = 0.25}).Average()), (std::vector<int>{2, 6}));
  EXPECT_EQ(Values(LayerDrop(model, {.share = 0.5, .rule = DropRule::kLinear}).Average()), (std::vector<int>{4, 7}));
  EXPECT_EQ(LayerDrop(model, {.share = 0.999}).Average().size(), 7u);
  EXPECT_TRUE(LayerDrop(model, {}).Average().empty());
  EXPECT_TRUE(LayerDrop(Model(1), {.share = 0.9}).Average().empty());
}

TEST(LayerDropTest, TheBlobsOfDroppedLayersAreThoseThatNoOtherLayerUses) {
  const ModelSpec model = Model(3, 7, {"transformer.h.1.ln_1.*"});
  std::vector<std::string> names;
  const std::vector<bool> dropped = DroppedBlobs(model, {LayerId(2), LayerId(3)});
  for (const BlobSpec& blob : model.blobs) {
    if (dropped[static_cast<size_t>(blob.id.value())]) names.push_back(blob.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"h.1", "h.1.frozen", "h.2"}));
  EXPECT_EQ(DroppedBlobs(model, {}), std::vector<bool>(model.blobs.size(), false));
}

}  // namespace
}  // namespace eps
