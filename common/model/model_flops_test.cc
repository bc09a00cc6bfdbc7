#include "common/model/model_flops.h"

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr int64_t kLayers = 3, kWidth = 24, kContext = 10, kVocab = 101;

ModelConfig Gpt2() {
  return {.num_layers = kLayers, .d_model = kWidth, .num_heads = 4, .context = kContext, .vocab = kVocab};
}

ModelConfig Bert(int64_t num_classes) {
  ModelConfig config = Gpt2();
  config.family = ModelFamily::kBert;
  config.max_positions = kContext;
  config.d_ff = 4 * kWidth;
  config.num_types = 2;
  config.num_classes = num_classes;
  return config;
}

ModelFlops FlopsOf(const ModelConfig& config) {
  const absl::StatusOr<ModelSpec> model = BuildModel(config);
  EXPECT_OK(model);
  return ModelFlops(*model);
}

TEST(ModelFlopsTest, AGpt2HasWhatTheFieldsFormulaSays) {
  const double per_token =
      6.0 * (12 * kLayers * kWidth * kWidth + kVocab * kWidth) + 12.0 * kLayers * kContext * kWidth;
  EXPECT_DOUBLE_EQ(FlopsOf(Gpt2()).Of({.tokens = 70, .samples = 7}), 70 * per_token);
}

TEST(ModelFlopsTest, HeadsOfKeysThatAreSharedAndGatesAreCountedAsTheyAre) {
  ModelConfig config = Gpt2();
  config.family = ModelFamily::kLlama;
  config.max_positions = kContext;
  config.d_ff = 40;
  config.num_kv_heads = 2;
  config.d_head = 8;  // queries are 32 wide, keys and values 16
  config.tied_head = false;
  const double block = kWidth * (32 + 16 + 16) + 32 * kWidth + 3 * kWidth * 40;
  const double per_token = 6.0 * (kLayers * block + kVocab * kWidth) + 12.0 * kLayers * kContext * 32;
  EXPECT_DOUBLE_EQ(FlopsOf(config).Of({.tokens = 1, .samples = 1}), per_token);
  config.sliding_window = 4;
  EXPECT_DOUBLE_EQ(FlopsOf(config).Of({.tokens = 1, .samples = 1}), per_token - 12.0 * kLayers * (kContext - 4) * 32);
}

TEST(ModelFlopsTest, LayersThatAStepLeavesOutAreNotCounted) {
  const ModelFlops flops = FlopsOf(Gpt2());
  const double block = 6.0 * 12 * kWidth * kWidth + 12.0 * kContext * kWidth;
  const std::vector<LayerId> dropped = {LayerId(1), LayerId(3)};
  EXPECT_DOUBLE_EQ(flops.Of({.tokens = 70, .samples = 7, .dropped = dropped}),
                   flops.Of({.tokens = 70, .samples = 7}) - 70 * 2 * block);
}

TEST(ModelFlopsTest, BelowTheLowestLayerThatTrainsThereIsTheForwardAlone) {
  ModelConfig config = Gpt2();
  config.freeze = {"transformer.wte.*", "transformer.wpe.*", "transformer.h.0.*", "transformer.h.1.*"};
  const double products = 12.0 * kWidth * kWidth, attention = 4.0 * kContext * kWidth;
  // Two blocks forward; one forward and back; the head, whose table is frozen: forward, and the gradient of what came in.
  const double per_token = 2 * (2 * products + attention) + (6 * products + 3 * attention) + 4.0 * kVocab * kWidth;
  EXPECT_DOUBLE_EQ(FlopsOf(config).Of({.tokens = 1, .samples = 1}), per_token);
}

TEST(ModelFlopsTest, AReferenceIsAForwardOfAllLayersWithoutAdapters) {
  ModelConfig config = Gpt2();
  config.lora = {.rank = 2, .alpha = 2};
  const ModelSpec model = BuildModel(config).value();
  const std::vector<LayerId> dropped = {LayerId(1)};
  const double forward = 2 * (12.0 * kLayers * kWidth * kWidth + kVocab * kWidth) + 4.0 * kLayers * kContext * kWidth;
  for (const ModelFlops::Step& step : {ModelFlops::Step{.tokens = 70}, {.tokens = 70, .dropped = dropped}}) {
    EXPECT_DOUBLE_EQ(ModelFlops(model, /*has_reference=*/true).Of(step), ModelFlops(model).Of(step) + 70 * forward);
  }
}

TEST(ModelFlopsTest, AdaptersAreProductsOfTheirOwnAndTheWeightsBesideThemHaveNoGradient) {
  ModelConfig config = Gpt2();
  config.lora = {.rank = 2, .alpha = 2};
  const double products = 12.0 * kWidth * kWidth, adapters = 2.0 * (4 + 2 + 5 + 5) * kWidth;
  const double block = 4 * products + 6 * adapters + 12.0 * kContext * kWidth;
  EXPECT_DOUBLE_EQ(FlopsOf(config).Of({.tokens = 1, .samples = 1}), kLayers * block + 4.0 * kVocab * kWidth);
}

TEST(ModelFlopsTest, AClassifiersHeadSeesOneRowOfEachSample) {
  const double blocks = 6.0 * 12 * kLayers * kWidth * kWidth + 12.0 * kLayers * kContext * kWidth;
  const double head = 6.0 * (kWidth * kWidth + 5 * kWidth);
  EXPECT_DOUBLE_EQ(FlopsOf(Bert(/*num_classes=*/5)).Of({.tokens = 70, .samples = 7}), 70 * blocks + 7 * head);
}

TEST(ModelFlopsTest, AHeadOfMaskedTokensIsThatOfEveryToken) {
  const double blocks = 6.0 * 12 * kLayers * kWidth * kWidth + 12.0 * kLayers * kContext * kWidth;
  const double head = 6.0 * (kWidth * kWidth + kVocab * kWidth);
  EXPECT_DOUBLE_EQ(FlopsOf(Bert(/*num_classes=*/0)).Of({.tokens = 70, .samples = 7}), 70 * (blocks + head));
}

}  // namespace
}  // namespace eps
