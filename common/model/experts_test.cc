// Models with a mixture of experts: what their folders say, which tensors they have, and what is refused.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/hf_config.h"
#include "common/model/model_config.h"
#include "common/model/model_flops.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

ModelConfig SmallExperts() {
  ModelConfig config = {.family = ModelFamily::kLlama, .num_layers = 2, .d_model = 12, .num_heads = 3};
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.d_ff = 20;
  config.context = config.max_positions = 16;
  config.vocab = 99;
  config.layer_norm_eps = 1e-6;
  config.tied_head = false;
  config.experts = {.num = 5, .per_token = 2};
  return config;
}

// With `more` in front, whose keys go first.
std::string Folder(const std::string& type, const std::string& more) {
  nlohmann::json object = {
      {"model_type", type},       {"num_hidden_layers", 2}, {"hidden_size", 12},       {"num_attention_heads", 3},
      {"num_key_value_heads", 1}, {"head_dim", 6},          {"intermediate_size", 20}, {"max_position_embeddings", 16},
      {"vocab_size", 99},         {"rms_norm_eps", 1e-6},   {"rope_theta", 1e4},       {"num_experts_per_tok", 2}};
  object[type == "mixtral" ? "num_local_experts" : "num_experts"] = 5;
  if (type == "qwen3_moe") object["moe_intermediate_size"] = 20;
  object.update(nlohmann::json::parse("{" + more + "}"));
  return object.dump();
}

TEST(ExpertsConfigTest, EachTypeHasWhatItsKeysAndItsNameSay) {
  ModelConfig want = SmallExperts();
  EXPECT_THAT(ModelConfigFromJson(Folder("mixtral", R"("sliding_window": null, "norm_topk_prob": false)")),
              IsOkAndHolds(want));
  want.sliding_window = 7;
  EXPECT_THAT(ModelConfigFromJson(Folder("mixtral", R"("sliding_window": 7)")), IsOkAndHolds(want));
  want = SmallExperts();
  want.qk_norm = true;
  want.experts.normalizes = false;
  EXPECT_THAT(ModelConfigFromJson(Folder("qwen3_moe", R"("intermediate_size": 77, "mlp_only_layers": [])")),
              IsOkAndHolds(want));
  want.experts.normalizes = want.qkv_bias = want.out_bias = true;
  EXPECT_THAT(ModelConfigFromJson(Folder("qwen3_moe", R"("norm_topk_prob": true, "attention_bias": true)")),
              IsOkAndHolds(want));
}

// Mixtral's of transformers are others than its family's.
TEST(ExpertsConfigTest, WhatAMixtralDoesNotSayIsWhatItMeansToTransformers) {
  nlohmann::json object = nlohmann::json::parse(Folder("mixtral", ""));
  object.erase("rms_norm_eps");
  object.erase("rope_theta");
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(object.dump()));
  EXPECT_EQ(config.layer_norm_eps, 1e-5);
  EXPECT_EQ(config.rotary.theta, 1e6);
  object["rope_theta"] = 500;
  EXPECT_EQ(ModelConfigFromJson(object.dump())->rotary.theta, 500);
}

// Programs differ in whether they look at max_window_layers.
TEST(ExpertsConfigTest, AQwenWithExpertsHasAWindowWhereEveryProgramGivesItOne) {
  const std::string window = R"("use_sliding_window": true, "sliding_window": 4)";
  EXPECT_EQ(ModelConfigFromJson(Folder("qwen3_moe", window + R"(, "max_window_layers": 0)"))->sliding_window, 4);
  for (const std::string more : {"", R"(, "max_window_layers": 2)", R"(, "max_window_layers": 1)"}) {
    EXPECT_THAT(ModelConfigFromJson(Folder("qwen3_moe", window + more)), StatusIs(kInvalid, "max_window_layers: "));
  }
  EXPECT_EQ(ModelConfigFromJson(Folder("qwen3_moe", R"("sliding_window": 4, "max_window_layers": 2)"))->sliding_window,
            0);
}

TEST(ExpertsConfigTest, TheLoadsBalanceIsNoFoldersToSay) {
  const std::string keys = R"("router_aux_loss_coef": 0.5, "output_router_logits": true)";
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(Folder("mixtral", keys)));
  EXPECT_EQ(config.experts.balance, 0);
}

// As their cards say, and transformers counts.
TEST(ExpertsConfigTest, ParametersOfKnownModelsAreCounted) {
  ModelConfig qwen = {.family = ModelFamily::kLlama, .num_layers = 48, .d_model = 2048, .num_heads = 32};
  qwen.num_kv_heads = 4;
  qwen.d_head = 128;
  qwen.d_ff = 768;
  qwen.context = qwen.max_positions = 40960;
  qwen.vocab = 151936;
  qwen.tied_head = false;
  qwen.qk_norm = true;
  qwen.experts = {.num = 128, .per_token = 8};
  ASSERT_OK_AND_ASSIGN(const ModelSpec qwen3_30b_a3b, BuildModel(qwen));
  EXPECT_EQ(qwen3_30b_a3b.num_parameters(), 30532122624);
  ModelConfig mixtral = qwen;
  mixtral.num_layers = 32;
  mixtral.d_model = 4096;
  mixtral.num_kv_heads = 8;
  mixtral.d_ff = 14336;
  mixtral.vocab = 32000;
  mixtral.qk_norm = false;
  mixtral.experts = {.num = 8, .per_token = 2};
  ASSERT_OK_AND_ASSIGN(const ModelSpec mixtral_8x7b, BuildModel(mixtral));
  EXPECT_EQ(mixtral_8x7b.num_parameters(), 46702792704);
}

// Bit by bit: qk_norm, qkv_bias, out_bias, a window, and weights as they are.
ModelConfig ExpertsMixOf(int mix) {
  ModelConfig config = SmallExperts();
  config.qk_norm = (mix & 1) != 0;
  config.qkv_bias = (mix & 2) != 0;
  config.out_bias = (mix & 4) != 0;
  config.sliding_window = (mix & 8) != 0 ? 7 : 0;
  config.experts.normalizes = (mix & 16) == 0;
  return config;
}

TEST(ExpertsConfigTest, EveryMixIsReadAsItWasWrittenAndOnesThatOthersHaveAreExported) {
  int of_mixtral = 0, of_qwen = 0;
  for (int mix = 0; mix < 32; ++mix) {
    const std::string text = ModelConfigToJson(ExpertsMixOf(mix));
    EXPECT_THAT(ModelConfigFromJson(text), IsOkAndHolds(ExpertsMixOf(mix))) << mix << ": " << text;
    const nlohmann::json type = nlohmann::json::parse(text)["model_type"];
    of_mixtral += type == "mixtral" ? 1 : 0;
    of_qwen += type == "qwen3_moe" ? 1 : 0;
    const absl::StatusOr<std::string> exported = ModelConfigToJson(ExpertsMixOf(mix), "BF16", {});
    EXPECT_EQ(exported.ok(), type != "eps_llama") << mix;
    if (exported.ok()) continue;
    EXPECT_THAT(exported, StatusIs(kInvalid, "model.experts.normalize: ")) << mix;
  }
  EXPECT_EQ(of_mixtral, 2);  // with and without a window
  EXPECT_EQ(of_qwen, 8);     // and with and without biases, and weights over their sum
}

TEST(ExpertsConfigTest, AComputationThatIsNotOursIsRefusedByKey) {
  for (const auto& [type, bad] : std::vector<std::pair<std::string, std::string>>{
           {"mixtral", R"("router_jitter_noise": 0.1)"},
           {"mixtral", R"("architectures": ["MixtralForSequenceClassification"])"},
           {"mixtral", R"("num_local_experts": 0)"},
           {"qwen3_moe", R"("decoder_sparse_step": 2)"},
           {"qwen3_moe", R"("mlp_only_layers": [0])"},
           {"qwen3_moe", R"("moe_intermediate_size": "wide")"},
           {"qwen3_moe", R"("num_experts_per_tok": null)"},
           {"qwen3_moe", R"("norm_topk_prob": 1)"},
       }) {
    const std::string key = bad.substr(1, bad.find('"', 1) - 1);
    EXPECT_THAT(ModelConfigFromJson(Folder(type, bad)), StatusIs(kInvalid, key + ": ")) << bad;
  }
  EXPECT_THAT(ModelConfigFromJson(Folder("mixtral", R"("num_experts_per_tok": 6)")),
              StatusIs(kInvalid, "model.experts.per_token: 6, must be between 1 and 5"));
}

std::vector<std::string> NamesOfExpert(const ModelSpec& model, int64_t expert) {
  std::vector<std::string> names;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.expert == expert) names.push_back(tensor.name);
    }
  }
  return names;
}

TEST(ExpertsSpecTest, ABlockHasTheTensorsOfHuggingFace) {
  ModelConfig config = SmallExperts();
  config.num_layers = 1;
  ASSERT_OK_AND_ASSIGN(const ModelSpec mixtral, BuildModel(config));
  const std::string m = "model.layers.0.block_sparse_moe.experts.3.";
  EXPECT_EQ(NamesOfExpert(mixtral, 3), (std::vector<std::string>{m + "w1.weight", m + "w3.weight", m + "w2.weight"}));
  config.qk_norm = true;
  ASSERT_OK_AND_ASSIGN(const ModelSpec qwen, BuildModel(config));
  const std::string q = "model.layers.0.mlp.experts.4.";
  EXPECT_EQ(NamesOfExpert(qwen, 4),
            (std::vector<std::string>{q + "gate_proj.weight", q + "up_proj.weight", q + "down_proj.weight"}));
}

TEST(ExpertsSpecTest, MatricesOfARoleLieAtEvenDistancesWhateverIsFrozen) {
  ModelConfig config = SmallExperts();
  config.qk_norm = true;
  // Of 240 elements, which take 256.
  const auto strides = [&](std::vector<std::string> freeze) {
    config.freeze = std::move(freeze);
    const ModelSpec model = BuildModel(config).value();
    std::vector<int64_t> all;
    for (const TensorRole role : {TensorRole::kGateWeight, TensorRole::kUpWeight, TensorRole::kDownWeight}) {
      all.push_back(ExpertStride(model, model.layers[1], role));
    }
    return all;
  };
  EXPECT_EQ(strides({}), (std::vector<int64_t>{768, 768, 768}));
  EXPECT_EQ(strides({"*.layers.0.mlp.experts.*"}), (std::vector<int64_t>{768, 768, 768}));
  EXPECT_EQ(strides({"*.experts.*.gate_proj.*"}), (std::vector<int64_t>{256, 512, 512}));
}

TEST(ExpertsSpecTest, ExpertsOfABlockAreFrozenTogether) {
  for (const int64_t num : {2, 5}) {
    ModelConfig config = SmallExperts();
    config.qk_norm = true;
    config.experts.num = num;
    const std::string last = std::to_string(num - 1);
    // What is frozen lies behind what is not: the last ones would lie where they did, and all but the first evenly.
    for (const std::string& expert :
         std::vector<std::string>{"0.*", "0.up_proj.*", last + ".*", last + ".down_proj.*", last + ".gate_proj.*"}) {
      config.freeze = {"*.layers.1.mlp.experts." + expert};
      EXPECT_THAT(BuildModel(config),
                  StatusIs(kInvalid, "model.freeze: of layers.1 a matrix of some experts is frozen"))
          << num << ", " << expert;
    }
    config.freeze = {"*.layers.1.mlp.experts.*", "!*.experts.0.*"};
    EXPECT_THAT(BuildModel(config), StatusIs(kInvalid, "model.freeze: of layers.1 a matrix of some experts is frozen"));
  }
}

TEST(ExpertsSpecTest, AdaptersStandBesideAttentionAlone) {
  ModelConfig config = SmallExperts();
  config.qk_norm = true;
  config.lora = {.rank = 2, .alpha = 2};
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  int adapters = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora == LoraPart::kNone) continue;
      EXPECT_TRUE(absl::StrContains(tensor.name, "self_attn")) << tensor.name;
      ++adapters;
    }
  }
  EXPECT_EQ(adapters, 2 * 4 * 2);
  for (const std::string target : {"gate", "down_proj", "experts.0.up_proj"}) {
    config.lora.targets = {"q_proj", target};
    EXPECT_THAT(BuildModel(config),
                StatusIs(kInvalid, absl::StrCat("model.lora.targets: \"", target,
                                                "\" names no product of the blocks that may have an adapter; names end "
                                                "with k_proj, o_proj, q_proj, v_proj")));
  }
}

TEST(ExpertsSpecTest, ARouterIsNotQuantized) {
  ModelConfig config = SmallExperts();
  config.lora = {.rank = 2, .alpha = 2};
  config.frozen_format = QuantizedFormat::kNf4;
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const bool is_router = tensor.role == TensorRole::kRouterWeight;
      if (!is_router && !tensor.is_of_expert()) continue;
      EXPECT_EQ(blob.is_quantized(), !is_router) << tensor.name;
    }
  }
}

TEST(ExpertsSpecTest, OperationsAreThoseOfTheExpertsThatATokenGoesThrough) {
  ModelConfig config = SmallExperts();
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  const double block = 12 * (18 + 6 + 6) + 18 * 12 + 5 * 12 + 2 * 3 * 12 * 20;
  const double per_token = 6.0 * (2 * block + 99 * 12) + 12.0 * 2 * 16 * 18;
  EXPECT_DOUBLE_EQ(ModelFlops(model).Of({.tokens = 1, .samples = 1}), per_token);
}

TEST(ExpertsSpecTest, NumbersOutsideTheirRangeAreNamed) {
  for (const auto& [experts, want] : std::vector<std::pair<ExpertsConfig, std::string>>{
           {{.num = 1025, .per_token = 1}, "model.experts.num: 1025, must be between 1 and 1024"},
           {{.num = 0, .per_token = 1}, "model.experts.num: 0, "},
           {{.num = 4, .per_token = 5}, "model.experts.per_token: 5, must be between 1 and 4"},
           {{.num = 4, .per_token = 0}, "model.experts.per_token: 0, "},
           {{.num = 4, .per_token = 1, .balance = -0.1}, "model.experts.balance: -0.1, must be between 0 and 1000"}}) {
    ModelConfig config = SmallExperts();
    config.experts = experts;
    EXPECT_THAT(BuildModel(config), StatusIs(kInvalid, want));
  }
}

}  // namespace
}  // namespace eps
