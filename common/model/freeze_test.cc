#include "common/model/freeze.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/model/name_patterns.h"
#include "common/numeric/quantized.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ModelConfig Gpt2(std::vector<std::string> freeze) {
  ModelConfig config;
  config.num_layers = 3;
  config.d_model = 64;
  config.num_heads = 2;
  config.context = 32;
  config.vocab = 300;
  config.freeze = std::move(freeze);
  return config;
}

ModelConfig Llama(std::vector<std::string> freeze) {
  ModelConfig config = Gpt2(std::move(freeze));
  config.family = ModelFamily::kLlama;
  config.max_positions = 32;
  config.num_kv_heads = 1;
  config.d_head = 32;
  config.d_ff = 96;
  config.tied_head = false;
  return config;
}

std::set<std::string> FrozenNames(const ModelSpec& model) {
  std::set<std::string> names;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (blob.frozen) names.insert(tensor.name);
    }
  }
  return names;
}

std::vector<std::string> BlobNames(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const BlobSpec& blob : model.blobs) names.push_back(blob.name);
  return names;
}

// What every model is, however much of it is frozen.
void ExpectSound(const ModelSpec& model) {
  std::set<std::string> seen;
  for (size_t b = 0; b < model.blobs.size(); ++b) {
    const BlobSpec& blob = model.blobs[b];
    EXPECT_EQ(blob.id, BlobId(static_cast<int32_t>(b)));
    EXPECT_FALSE(blob.tensors.empty()) << blob.name;
    EXPECT_FALSE(blob.uses.empty()) << blob.name;
    int64_t end = 0;
    for (const TensorSpec& tensor : blob.tensors) {
      EXPECT_TRUE(seen.insert(tensor.name).second) << tensor.name;
      EXPECT_EQ(tensor.offset_elems % kTensorAlignElems, 0);
      EXPECT_GE(tensor.offset_elems, end);
      EXPECT_LT(tensor.offset_elems - end, kTensorAlignElems);
      end = tensor.offset_elems + tensor.num_elems();
    }
    EXPECT_GE(blob.num_elems, end);
    EXPECT_EQ(blob.num_elems % kTensorAlignElems, 0);
  }
  for (const LayerSpec& layer : model.layers) {
    int64_t elems = 0, trainable = 0;
    bool any_frozen = false;
    for (const BlobUse& use : layer.blobs) {
      const BlobSpec& blob = model.blob(use.blob);
      EXPECT_EQ(use.offset_elems, elems);
      EXPECT_EQ(blob.uses[static_cast<size_t>(use.use)], layer.id);
      EXPECT_FALSE(any_frozen && !blob.frozen) << layer.name;
      any_frozen = any_frozen || blob.frozen;
      elems += blob.num_elems;
      trainable += blob.frozen ? 0 : blob.num_elems;
    }
    EXPECT_EQ(layer.num_elems, elems);
    EXPECT_EQ(layer.trainable_elems, trainable);
  }
}

TEST(FreezeTest, WithoutPatternsTheModelIsTheFamilys) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(Gpt2({})));
  EXPECT_TRUE(FrozenNames(model).empty());
  EXPECT_EQ(model.num_trainable_elems(), model.num_elems());
  EXPECT_EQ(model.lowest_trainable_layer(), LayerId(0));
  ExpectSound(model);
}

TEST(FreezeTest, AWholeLayerKeepsItsBlob) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(Gpt2({"transformer.w?e.weight", "transformer.h.0.*"})));
  ExpectSound(model);
  EXPECT_EQ(BlobNames(model), (std::vector<std::string>{"wte", "wpe", "h.0", "h.1", "h.2", "ln_f"}));
  EXPECT_TRUE(model.blobs[0].frozen && model.blobs[1].frozen && model.blobs[2].frozen);
  EXPECT_FALSE(model.blobs[3].frozen);
  EXPECT_EQ(model.layers[0].trainable_elems, 0);
  EXPECT_FALSE(model.layers[1].trains());
  EXPECT_EQ(model.lowest_trainable_layer(), LayerId(2));
  // Tied: still both layers', and last in the head's slot.
  EXPECT_EQ(model.blobs[0].uses.size(), 2u);
  EXPECT_EQ(model.layers.back().trainable_elems, 2 * 64);
}

TEST(FreezeTest, ABlobOfBothKindsBecomesTwoOfItsLayer) {
  const ModelSpec plain = BuildModel(Gpt2({})).value();
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(Gpt2({"transformer.h.1.*", "!*.bias"})));
  ExpectSound(model);
  EXPECT_EQ(BlobNames(model), (std::vector<std::string>{"wte", "wpe", "h.0", "h.1", "h.1.frozen", "h.2", "ln_f"}));
  EXPECT_EQ(FrozenNames(model),
            (std::set<std::string>{"transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight",
                                   "transformer.h.1.ln_1.weight", "transformer.h.1.ln_2.weight",
                                   "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"}));
  EXPECT_EQ(model.num_parameters(), plain.num_parameters());
  EXPECT_EQ(model.num_trainable_parameters(), plain.num_parameters() - (12 * 64 * 64 + 2 * 64));
  // Vectors before matrices: kernels may write their gradients, and those alone.
  const std::vector<TensorSpec>& tensors = model.blobs[4].tensors;
  EXPECT_EQ(tensors[0].shape.size(), 1u);
  EXPECT_EQ(tensors[1].shape.size(), 1u);
  EXPECT_EQ(tensors[2].shape.size(), 2u);
}

TEST(FreezeTest, FrozenMatricesOfBlocksAreQuantizedApart) {
  ModelConfig config = Gpt2({"transformer.wte.weight", "transformer.h.0.*", "transformer.h.1.attn.*"});
  config.frozen_format = QuantizedFormat::kMxInt8;
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  ExpectSound(model);
  EXPECT_TRUE(model.has_quantized());
  EXPECT_EQ(BlobNames(model), (std::vector<std::string>{"wte", "wpe", "h.0.frozen", "h.0.quantized", "h.1",
                                                        "h.1.frozen", "h.1.quantized", "h.2", "ln_f"}));
  std::set<std::string> quantized;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (blob.is_quantized()) quantized.insert(tensor.name);
    }
  }
  EXPECT_EQ(quantized,
            (std::set<std::string>{"transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight",
                                   "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight",
                                   "transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight"}));
  // Bytes: others in the wire dtype, these in 33/32 whatever that is.
  const LayerSpec& block = model.layers[2];
  const BlobUse& last = block.blobs.back();
  EXPECT_TRUE(model.blob(last.blob).is_quantized());
  EXPECT_EQ(model.blob(last.blob).wire_bytes(Dtype::kF32), 4 * 64 * 64 / 32 * 33);
  EXPECT_EQ(ModelSpec::first_wire_byte(last, Dtype::kF32), 4 * last.offset_elems);
  EXPECT_EQ(model.wire_bytes(block, Dtype::kF32), 4 * last.offset_elems + 4 * 64 * 64 / 32 * 33);
  EXPECT_EQ(model.wire_bytes(model.layers[3], Dtype::kBf16), 2 * model.layers[3].num_elems);
}

TEST(FreezeTest, AdaptersAreNotQuantizedAlsoWhereTheyAreFrozen) {
  ModelConfig config = Llama({"*.lora_A.*"});
  config.lora = {.rank = 2, .alpha = 2};
  config.frozen_format = QuantizedFormat::kMxInt8;
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  ExpectSound(model);
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const bool of_block = tensor.name.rfind("model.layers.", 0) == 0;
      EXPECT_EQ(blob.is_quantized(), of_block && tensor.shape.size() == 2 && tensor.lora == LoraPart::kNone)
          << tensor.name;
    }
  }
}

TEST(FreezeTest, WithNoMatrixOfABlockFrozenThereIsNothingToQuantize) {
  for (const std::vector<std::string>& freeze :
       {std::vector<std::string>{}, {"transformer.w*"}, {"transformer.h.*.bias"}, {"*.ln_?.weight"}}) {
    ModelConfig config = Gpt2(freeze);
    config.frozen_format = QuantizedFormat::kMxInt8;
    EXPECT_THAT(BuildModel(config),
                StatusIs(absl::StatusCode::kInvalidArgument, "precision.frozen: no matrix of a block"));
  }
}

TEST(FreezeTest, TheLastPatternThatMatchesCounts) {
  const auto frozen = [](std::vector<std::string> patterns) {
    return FrozenNames(BuildModel(Llama(std::move(patterns))).value());
  };
  EXPECT_EQ(frozen({"*", "!model.layers.2.*"}).count("model.layers.2.self_attn.q_proj.weight"), 0u);
  EXPECT_EQ(frozen({"*", "!model.layers.2.*"}).count("lm_head.weight"), 1u);
  EXPECT_EQ(frozen({"!lm_head.weight", "lm_head.weight"}), (std::set<std::string>{"lm_head.weight"}));
  EXPECT_TRUE(frozen({"lm_head.weight", "!lm_head.weight"}).empty());
}

TEST(FreezeTest, APatternThatMatchesNothingIsNamedWithANearName) {
  const absl::Status status = BuildModel(Gpt2({"*.bias", "transformer.h.3.ln_1.bias"})).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "model.freeze: \"transformer.h.3.ln_1.bias\" matches no tensor"))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "such as transformer.h.0.ln_1.bias")) << status;
  for (const std::string& pattern : {std::string(), std::string("!"), std::string("!model.*"), std::string("h.0.*")}) {
    const absl::Status wrong = BuildModel(Gpt2({pattern})).status();
    EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << pattern;
    EXPECT_TRUE(absl::StrContains(wrong.message(), absl::StrCat("\"", pattern, "\""))) << wrong;
  }
}

TEST(FreezeTest, EverythingFrozenAndTooMuchAreRefused) {
  EXPECT_TRUE(absl::StrContains(BuildModel(Gpt2({"*"})).status().message(), "nothing is left to train"));
  EXPECT_FALSE(BuildModel(Gpt2(std::vector<std::string>(kMaxNamePatterns + 1, "*.bias"))).ok());
  EXPECT_OK(BuildModel(Gpt2(std::vector<std::string>(kMaxNamePatterns, "*.bias"))));
  EXPECT_FALSE(BuildModel(Gpt2({std::string(kMaxNamePatternBytes, '*') + "s"})).ok());
}

// ---- beside adapters

ModelConfig Adapted(ModelConfig config) {
  config.lora = {.rank = 4, .alpha = 4, .targets = {config.family == ModelFamily::kGpt2 ? "mlp.c_proj" : "down_proj"}};
  return config;
}

TEST(FreezeTest, BesideAdaptersAllOtherTensorsAreFrozen) {
  const ModelSpec plain = BuildModel(Gpt2({})).value();
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(Adapted(Gpt2({}))));
  ExpectSound(model);
  EXPECT_EQ(BlobNames(model), (std::vector<std::string>{"wte", "wpe", "h.0", "h.0.frozen", "h.1", "h.1.frozen", "h.2",
                                                        "h.2.frozen", "ln_f"}));
  EXPECT_EQ(FrozenNames(model).size(), 2u + 3 * 12 + 2);
  EXPECT_EQ(model.num_trainable_parameters(), 3 * 4 * (4 * 64 + 64));
  EXPECT_EQ(model.num_parameters(), plain.num_parameters() + model.num_trainable_parameters());
  EXPECT_EQ(model.lowest_trainable_layer(), LayerId(1));
  EXPECT_FALSE(model.layers.back().trains());
  const std::vector<TensorSpec>& trained = model.blobs[2].tensors;
  ASSERT_EQ(trained.size(), 2u);
  EXPECT_EQ(trained[0].name, "transformer.h.0.mlp.c_proj.lora_A.weight");
  EXPECT_EQ(trained[1].name, "transformer.h.0.mlp.c_proj.lora_B.weight");
  ASSERT_OK_AND_ASSIGN(const ModelSpec llama, BuildModel(Adapted(Llama({}))));
  ExpectSound(llama);
  EXPECT_EQ(FrozenNames(llama).count("lm_head.weight"), 1u);
}

TEST(FreezeTest, PatternsTakeTensorsBackAndMayFreezeAdaptersToo) {
  ASSERT_OK_AND_ASSIGN(
      const ModelSpec model,
      BuildModel(Adapted(Gpt2({"!transformer.h.*.ln_?.*", "transformer.h.0.*", "transformer.h.1.*.lora_A.*"}))));
  ExpectSound(model);
  EXPECT_EQ(BlobNames(model),
            (std::vector<std::string>{"wte", "wpe", "h.0", "h.1", "h.1.frozen", "h.2", "h.2.frozen", "ln_f"}));
  EXPECT_TRUE(model.blobs[2].frozen);
  std::vector<std::string> trained;
  for (const TensorSpec& tensor : model.blobs[3].tensors) trained.push_back(tensor.name);
  const std::string h = "transformer.h.1.";
  EXPECT_EQ(trained, (std::vector<std::string>{h + "ln_1.weight", h + "ln_1.bias", h + "ln_2.weight", h + "ln_2.bias",
                                               h + "mlp.c_proj.lora_B.weight"}));
  EXPECT_TRUE(FrozenNames(BuildModel(Adapted(Gpt2({"!*"}))).value()).empty());
}

TEST(FreezeTest, WithAdaptersFrozenAsWellNothingIsLeftToTrain) {
  for (const char* pattern : {"*", "*.lora_?.weight"}) {
    const absl::Status status = BuildModel(Adapted(Gpt2({pattern}))).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "nothing is left to train")) << status;
  }
  EXPECT_OK(BuildModel(Adapted(Gpt2({"*", "!transformer.ln_f.bias"}))));  // as an evaluation has it
}

TEST(FreezeTest, WhatAClassifiersClassesAreComputedByTrainsBesideAdapters) {
  ModelConfig config = Gpt2({});
  config.family = ModelFamily::kBert;
  config.max_positions = 32;
  config.d_ff = 96;
  config.num_types = 2;
  config.lora = {.rank = 4, .alpha = 4, .targets = {"query"}};
  for (const int64_t num_classes : {0, 5}) {
    config.num_classes = num_classes;
    ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
    ExpectSound(model);
    EXPECT_EQ(model.num_trainable_parameters(), 3 * 4 * (64 + 64) + num_classes * (64 + 1));
    EXPECT_EQ(FrozenNames(model).count("classifier.weight"), 0u);
    EXPECT_EQ(FrozenNames(model).count("bert.pooler.dense.weight"), num_classes > 0 ? 1u : 0u);
    EXPECT_EQ(FrozenNames(model).count("cls.predictions.bias"), num_classes > 0 ? 0u : 1u);
  }
}

}  // namespace
}  // namespace eps
