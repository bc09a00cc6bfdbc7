#include "common/model/lora.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Everything trains, so that each blob is whole.
ModelConfig OfFamily(ModelFamily family, LoraConfig lora) {
  ModelConfig config = {
      .family = family, .num_layers = 2, .d_model = 24, .num_heads = 4, .context = 10, .vocab = 101, .init_seed = 1};
  if (family != ModelFamily::kGpt2) config.max_positions = 10;
  if (family != ModelFamily::kGpt2) config.d_ff = 40;
  if (family == ModelFamily::kLlama) config.num_kv_heads = 2;  // queries are 32 wide, keys and values 16
  if (family == ModelFamily::kLlama) config.d_head = 8;
  if (family == ModelFamily::kBert) config.num_types = 2;
  config.lora = std::move(lora);
  config.freeze = {"!*"};
  return config;
}

ModelSpec ModelWith(LoraConfig lora, ModelFamily family = ModelFamily::kGpt2) {
  return BuildModel(OfFamily(family, std::move(lora))).value();
}

const BlobSpec& SecondBlock(const ModelSpec& model) { return model.blob(model.layers[2].blobs[0].blob); }

// Behind the blob's own tensors, which are as they were: "NAME (rows, columns)".
std::vector<std::string> AdaptersIn(const BlobSpec& blob) {
  std::vector<std::string> adapters;
  for (const TensorSpec& tensor : blob.tensors) {
    if (tensor.lora == LoraPart::kNone) {
      EXPECT_THAT(adapters, IsEmpty()) << tensor.name;
    } else {
      adapters.push_back(absl::StrCat(tensor.name, " (", absl::StrJoin(tensor.shape, ", "), ")"));
    }
  }
  return adapters;
}

TEST(LoraTest, AGpt2HasThemBesideItsFourProducts) {
  const std::string h = "transformer.h.1.";
  EXPECT_THAT(AdaptersIn(SecondBlock(ModelWith({.rank = 4, .alpha = 4}))),
              ElementsAre(h + "attn.c_attn.lora_A.weight (4, 24)", h + "attn.c_proj.lora_A.weight (4, 24)",
                          h + "mlp.c_fc.lora_A.weight (4, 24)", h + "mlp.c_proj.lora_A.weight (4, 96)",
                          h + "attn.c_attn.lora_B.weight (72, 4)", h + "attn.c_proj.lora_B.weight (24, 4)",
                          h + "mlp.c_fc.lora_B.weight (96, 4)", h + "mlp.c_proj.lora_B.weight (24, 4)"));
}

TEST(LoraTest, ALlamaHasThemBesideItsSevenProducts) {
  const std::string self = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
  EXPECT_THAT(AdaptersIn(SecondBlock(ModelWith({.rank = 3, .alpha = 3}, ModelFamily::kLlama))),
              ElementsAre(self + "q_proj.lora_A.weight (3, 24)", self + "k_proj.lora_A.weight (3, 24)",
                          self + "v_proj.lora_A.weight (3, 24)", self + "o_proj.lora_A.weight (3, 32)",
                          mlp + "gate_proj.lora_A.weight (3, 24)", mlp + "up_proj.lora_A.weight (3, 24)",
                          mlp + "down_proj.lora_A.weight (3, 40)", self + "q_proj.lora_B.weight (32, 3)",
                          self + "k_proj.lora_B.weight (16, 3)", self + "v_proj.lora_B.weight (16, 3)",
                          self + "o_proj.lora_B.weight (24, 3)", mlp + "gate_proj.lora_B.weight (40, 3)",
                          mlp + "up_proj.lora_B.weight (40, 3)", mlp + "down_proj.lora_B.weight (24, 3)"));
}

TEST(LoraTest, ABertHasThemBesideItsSixProducts) {
  const std::string layer = "bert.encoder.layer.1.", self = layer + "attention.self.";
  EXPECT_THAT(
      AdaptersIn(SecondBlock(ModelWith({.rank = 1, .alpha = 1}, ModelFamily::kBert))),
      ElementsAre(self + "query.lora_A.weight (1, 24)", self + "key.lora_A.weight (1, 24)",
                  self + "value.lora_A.weight (1, 24)", layer + "attention.output.dense.lora_A.weight (1, 24)",
                  layer + "intermediate.dense.lora_A.weight (1, 24)", layer + "output.dense.lora_A.weight (1, 40)",
                  self + "query.lora_B.weight (24, 1)", self + "key.lora_B.weight (24, 1)",
                  self + "value.lora_B.weight (24, 1)", layer + "attention.output.dense.lora_B.weight (24, 1)",
                  layer + "intermediate.dense.lora_B.weight (40, 1)", layer + "output.dense.lora_B.weight (24, 1)"));
}

TEST(LoraTest, TheModelsOwnTensorsAndItsOtherBlobsAreAsTheyWere) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kBert}) {
    const ModelSpec plain = ModelWith({}, family), adapted = ModelWith({.rank = 5, .alpha = 1}, family);
    ASSERT_EQ(adapted.blobs.size(), plain.blobs.size());
    for (size_t b = 0; b < plain.blobs.size(); ++b) {
      const BlobSpec &was = plain.blobs[b], &is = adapted.blobs[b];
      const bool is_block = adapted.layer(is.uses[0]).kind == LayerKind::kBlock;
      EXPECT_EQ(is.name, was.name);
      EXPECT_EQ(is.uses, was.uses);
      EXPECT_EQ(AdaptersIn(is).empty(), !is_block) << is.name;
      for (size_t t = 0; t < was.tensors.size(); ++t) {
        EXPECT_EQ(is.tensors[t].name, was.tensors[t].name);
        EXPECT_EQ(is.tensors[t].offset_elems, was.tensors[t].offset_elems);
      }
      // Where the As begin, and every one behind it, as the own ones do.
      int64_t end = was.num_elems;
      for (size_t t = was.tensors.size(); t < is.tensors.size(); ++t) {
        EXPECT_EQ(is.tensors[t].offset_elems, end) << is.tensors[t].name;
        end += (is.tensors[t].num_elems() + kTensorAlignElems - 1) / kTensorAlignElems * kTensorAlignElems;
      }
      EXPECT_EQ(is.num_elems, end);
    }
  }
}

TEST(LoraTest, AnAdapterHasTheRoleOfItsWeight) {
  const ModelSpec model = ModelWith({.rank = 2, .alpha = 2, .targets = {"mlp.c_proj"}});
  const std::vector<TensorSpec>& tensors = SecondBlock(model).tensors;
  ASSERT_EQ(tensors.size(), 12u + 2);
  EXPECT_EQ(tensors[12].role, TensorRole::kDownWeight);
  EXPECT_EQ(tensors[12].lora, LoraPart::kA);
  EXPECT_EQ(tensors[13].role, TensorRole::kDownWeight);
  EXPECT_EQ(tensors[13].lora, LoraPart::kB);
  for (const TensorSpec* tensor : {&tensors[10], &tensors[12], &tensors[13]}) {
    EXPECT_EQ(ModuleOf(*tensor), "transformer.h.1.mlp.c_proj") << tensor->name;
  }
}

TEST(LoraTest, ABeginsAsNormalValuesAndBAsZerosWhateverTheDepthIs) {
  ModelConfig config = OfFamily(ModelFamily::kGpt2, {.rank = 64, .alpha = 1, .targets = {"mlp.c_proj"}});
  const TensorSpec a = SecondBlock(BuildModel(config).value()).tensors[12];
  std::vector<float> values(static_cast<size_t>(a.num_elems()));
  InitTensor(a, 1, values.data());
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  // Variance 1 / (3 in): of 6144 values it is found within 2 percent more often than not, within 10 always.
  EXPECT_NEAR(squares / static_cast<double>(values.size()) * 3 * 96, 1, 0.1);
  config.num_layers = 5;
  const ModelSpec deeper = BuildModel(config).value();
  std::vector<float> same(values.size());
  InitTensor(SecondBlock(deeper).tensors[12], 1, same.data());
  EXPECT_EQ(same, values);

  const TensorSpec& b = SecondBlock(deeper).tensors[13];
  values.assign(static_cast<size_t>(b.num_elems()), 7.0f);
  InitTensor(b, 1, values.data());
  EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f));
}

TEST(LoraTest, TargetsAreWhatNamesOfModulesEndWith) {
  const auto adapted = [](std::vector<std::string> targets) {
    std::string modules;
    const ModelSpec model = ModelWith({.rank = 1, .alpha = 1, .targets = std::move(targets)});
    for (const BlobSpec& blob : model.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        if (tensor.lora == LoraPart::kA) absl::StrAppend(&modules, modules.empty() ? "" : " ", ModuleOf(tensor));
      }
    }
    return modules;
  };
  EXPECT_EQ(adapted({"c_proj"}),
            "transformer.h.0.attn.c_proj transformer.h.0.mlp.c_proj transformer.h.1.attn.c_proj "
            "transformer.h.1.mlp.c_proj");
  EXPECT_EQ(adapted({"mlp.c_proj", "attn.c_attn"}),  // the model's order, not theirs
            "transformer.h.0.attn.c_attn transformer.h.0.mlp.c_proj transformer.h.1.attn.c_attn "
            "transformer.h.1.mlp.c_proj");
  EXPECT_EQ(adapted({"1.mlp.c_fc"}), "transformer.h.1.mlp.c_fc");
  EXPECT_EQ(adapted({"transformer.h.0.mlp.c_fc", "c_fc", "c_fc"}), "transformer.h.0.mlp.c_fc transformer.h.1.mlp.c_fc");
}

TEST(LoraTest, ATargetThatNamesNoProductIsRefusedWithTheNamesThatThereAre) {
  for (const std::string target : {"proj", "q_proj", "wte", "ln_1", "c_fc.weight", ".c_fc", "h.2.mlp.c_fc"}) {
    EXPECT_THAT(BuildModel(OfFamily(ModelFamily::kGpt2, {.rank = 1, .alpha = 1, .targets = {"c_fc", target}})),
                StatusIs(kInvalid,
                         absl::StrCat(
                             "model.lora.targets: \"", target,
                             "\" names no product of the blocks that may have an adapter; names end with c_attn, c_fc, "
                             "c_proj")));
  }
}

TEST(LoraTest, NumbersOutsideTheirRangeAreNamed) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<LoraConfig, std::string>> refused = {
      {{.rank = 0, .alpha = 1}, "model.lora.rank: 0, must be between 1 and 4096"},
      {{.rank = 0, .targets = {"c_fc"}}, "model.lora.rank: 0,"},
      {{.rank = -1, .alpha = 1}, "model.lora.rank: -1,"},
      {{.rank = 4097, .alpha = 1}, "model.lora.rank: 4097,"},
      {{.rank = 1, .alpha = 0}, "model.lora.alpha: 0, must be greater than 0, and finite in fp32"},
      {{.rank = 1, .alpha = -2}, "model.lora.alpha: -2,"},
      {{.rank = 1, .alpha = kNan}, "model.lora.alpha: nan,"},
      {{.rank = 1, .alpha = kInf}, "model.lora.alpha: inf,"},
      {{.rank = 1, .alpha = 1e39}, "model.lora.alpha: 1e+39,"},
      {{.rank = 4096, .alpha = 1e-43}, "model.lora.alpha: 1e-43,"},  // whose scale is no number of fp32
      {{.rank = 1, .alpha = 1, .targets = {"c_fc", ""}}, "model.lora.targets: one of 0 bytes, must be of 1 to 256"},
      {{.rank = 1, .alpha = 1, .targets = {std::string(257, 'x')}}, "model.lora.targets: one of 257 bytes,"},
      {{.rank = 1, .alpha = 1, .targets = std::vector<std::string>(1025, "c_fc")},
       "model.lora.targets: 1025, must be at most 1024"}};
  for (const auto& [lora, message] : refused) {
    EXPECT_THAT(BuildModel(OfFamily(ModelFamily::kGpt2, lora)), StatusIs(kInvalid, message)) << message;
  }
  EXPECT_OK(BuildModel(OfFamily(ModelFamily::kGpt2, {.rank = 4096, .alpha = 1})));  // more than its products have
}

TEST(LoraTest, TheScaleGoesByTheRankOrItsRoot) {
  EXPECT_EQ((LoraConfig{.rank = 16, .alpha = 32}).scale(), 2);
  EXPECT_EQ((LoraConfig{.rank = 16, .alpha = 32, .rank_stabilized = true}).scale(), 8);
}

TEST(LoraTest, AWeightIsInOutInAGpt2AndOutInElsewhere) {
  const ProductShape gpt2 = ProductShapeOf({.family = ModelFamily::kGpt2}, {24, 96});
  EXPECT_EQ(gpt2.in, 24);
  EXPECT_EQ(gpt2.out, 96);
  EXPECT_FALSE(gpt2.is_out_in);
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kBert}) {
    const ProductShape other = ProductShapeOf({.family = family}, {24, 96});
    EXPECT_EQ(other.in, 96);
    EXPECT_EQ(other.out, 24);
    EXPECT_TRUE(other.is_out_in);
  }
}

}  // namespace
}  // namespace eps
