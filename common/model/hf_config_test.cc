#include "common/model/hf_config.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using ::testing::HasSubstr;

// Of members that are there twice the last one, as most programs take it.
std::string LastOfEach(const std::string& text) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return object.is_discarded() ? text : object.dump();
}

// The smallest config that is taken, with `more` ("\"key\": value, ...") in front.
std::string Config(const std::string& more = "") {
  return LastOfEach(
      "{" + more + (more.empty() ? "" : ",") +
      R"("model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 99})");
}

TEST(HfConfigTest, ASmallConfigIsRead) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(Config()));
  ModelConfig want;
  want.num_layers = 2;
  want.d_model = 8;
  want.num_heads = 2;
  want.context = 16;
  want.vocab = 99;
  EXPECT_EQ(config, want);
}

TEST(HfConfigTest, TheConfigOfGpt2IsRead) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.2, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-06, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.3, "summary_activation": null, "vocab_size": 50257, "n_inner": null,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})"));
  EXPECT_EQ(config.num_layers, 12);
  EXPECT_EQ(config.context, 1024);
  EXPECT_EQ(config.layer_norm_eps, 1e-6);
  EXPECT_EQ(config.attention_dropout, 0.1);
  EXPECT_EQ(config.embedding_dropout, 0.2);
  EXPECT_EQ(config.residual_dropout, 0.3);
}

TEST(HfConfigTest, WhatIsWrittenIsReadWithTheSameBits) {
  ModelConfig config;
  config.num_layers = 3;
  config.d_model = 12;
  config.num_heads = 3;
  config.context = 7;
  config.vocab = 256;
  config.layer_norm_eps = 1e-5 / 3;
  config.residual_dropout = 0.1 + 0.2;
  EXPECT_THAT(ModelConfigFromJson(ModelConfigToJson(config)), IsOkAndHolds(config));
}

TEST(HfConfigTest, TheOldNameOfTheContextIsTaken) {
  ASSERT_OK_AND_ASSIGN(
      const ModelConfig config,
      ModelConfigFromJson(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_ctx":5,"vocab_size":9})"));
  EXPECT_EQ(config.context, 5);
}

TEST(HfConfigTest, AComputationThatIsNotOursIsRefusedByKey) {
  for (const std::string bad :
       {R"("activation_function": "relu")", R"("tie_word_embeddings": false)",
        R"("scale_attn_by_inverse_layer_idx": true)", R"("scale_attn_weights": false)",
        R"("reorder_and_upcast_attn": true)", R"("add_cross_attention": true)", R"("n_inner": 31)",
        R"("architectures": ["GPT2ForTokenClassification"])", R"("quantization_config": {"bits": 8})"}) {
    const std::string key = bad.substr(1, bad.find('"', 1) - 1);
    EXPECT_THAT(ModelConfigFromJson(Config(bad)), StatusIs(kInvalid, key + ": ")) << bad;
  }
  EXPECT_OK(ModelConfigFromJson(Config(R"("n_inner": 32, "activation_function": "gelu_pytorch_tanh")")));
}

TEST(HfConfigTest, AnotherModelIsRefused) {
  EXPECT_THAT(ModelConfigFromJson(R"({"model_type":"t5","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,
                                     "vocab_size":9})"),
              StatusIs(kInvalid,
                       "model_type: \"t5\", must be one of \"gpt2\", \"llama\", \"mistral\", \"mixtral\", \"qwen2\", "
                       "\"qwen3\", \"qwen3_moe\""));
  EXPECT_THAT(ModelConfigFromJson(R"({"n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})"),
              StatusIs(kInvalid, "model_type: missing"));
}

// ---- adapters ----

TEST(HfConfigTest, AdaptersAreReadAsTheyWereWritten) {
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ModelConfigFromJson(Config()));
  EXPECT_EQ(config.lora, LoraConfig{});
  EXPECT_FALSE(nlohmann::json::parse(ModelConfigToJson(config)).contains("eps_lora"));
  config.lora = {
      .rank = 3, .alpha = 1.0 / 3, .dropout = 0.1 + 0.2, .rank_stabilized = true, .targets = {"c_attn", "mlp.c_proj"}};
  EXPECT_THAT(ModelConfigFromJson(ModelConfigToJson(config)), IsOkAndHolds(config));
  EXPECT_EQ(ModelConfigFromJson(Config(R"("eps_lora": {"rank": 4, "alpha": 8})"))->lora,
            (LoraConfig{.rank = 4, .alpha = 8}));
  EXPECT_EQ(ModelConfigFromJson(Config(R"("eps_lora": null)"))->lora, LoraConfig{});
}

TEST(HfConfigTest, AdaptersThatNoModelHasAreRefusedByKey) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"3", "eps_lora: 3, must be an object"},
      {"{}", "eps_lora.rank: missing"},
      {R"({"rank": 4.5, "alpha": 1})", "eps_lora.rank: 4.5, must be a whole number"},
      {R"({"rank": 4, "alpha": "x"})", "eps_lora.alpha: \"x\", must be a number"},
      {R"({"rank": 4, "alpha": 1, "dropout": 1})", "eps_lora.dropout: 1, must be at least 0"},
      {R"({"rank": 4, "alpha": 1, "rank_stabilized": 1})", "eps_lora.rank_stabilized: 1, must be true or false"},
      {R"({"rank": 4, "alpha": 1, "targets": "c_fc"})", "eps_lora.targets: \"c_fc\", must be a list of names"},
      {R"({"rank": 4, "alpha": 1, "targets": [7]})", "eps_lora.targets: 7, must be a name"},
      {R"({"rank": 0})", "eps_lora.rank: 0, must be between"},
      {R"({"rank": 4})", "eps_lora.alpha: 0, must be greater than 0"},
      {R"({"rank": 4, "alpha": 1, "targets": [""]})", "eps_lora.targets: one of 0 bytes"}};
  for (const auto& [lora, message] : refused) {
    EXPECT_THAT(ModelConfigFromJson(Config("\"eps_lora\": " + lora)), StatusIs(kInvalid, message)) << lora;
  }
}

TEST(HfConfigTest, WhatAModelBeganWithIsLaidOverByWhatItHasBecome) {
  const std::string source = Config(R"("future": 1, "resid_pdrop": 0.25)");
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ModelConfigFromJson(source));
  ASSERT_OK_AND_ASSIGN(const std::string same, LayOverSource(config, source));
  EXPECT_THAT(ModelConfigFromJson(same), IsOkAndHolds(config));
  EXPECT_FALSE(nlohmann::json::parse(same).contains("eps_lora"));
  config.num_layers += 2;
  config.residual_dropout = 0;
  config.lora = {.rank = 4, .alpha = 8, .targets = {"c_fc"}};
  ASSERT_OK_AND_ASSIGN(const std::string grown, LayOverSource(config, source));
  EXPECT_THAT(ModelConfigFromJson(grown), IsOkAndHolds(config));
  EXPECT_EQ(nlohmann::json::parse(grown)["future"], 1);
  config.lora = {};
  ASSERT_OK_AND_ASSIGN(const std::string merged, LayOverSource(config, grown));
  EXPECT_THAT(ModelConfigFromJson(merged), IsOkAndHolds(config)) << "the source's own adapters are gone";
  EXPECT_THAT(LayOverSource(config, "[]"), StatusIs(kInvalid, "not a JSON object"));
  EXPECT_THAT(LayOverSource(config, "{"), StatusIs(kInvalid, "JSON"));
}

// ---- the Llama family ----

// The smallest config of a type, with `more` in front, whose keys go first.
std::string LlamaConfig(const std::string& type, const std::string& more = "") {
  return LastOfEach("{" + more + (more.empty() ? "" : ",") + R"("model_type": ")" + type +
                    R"(", "num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3,
         "num_key_value_heads": 1, "head_dim": 6, "intermediate_size": 20, "max_position_embeddings": 16,
         "vocab_size": 99})");
}
ModelConfig SmallLlama() {
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.num_layers = 2;
  config.d_model = 12;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.d_ff = 20;
  config.context = config.max_positions = 16;
  config.vocab = 99;
  config.layer_norm_eps = 1e-6;
  config.tied_head = false;
  return config;
}

TEST(HfLlamaConfigTest, EachTypeHasWhatItsKeysAndItsNameSay) {
  ModelConfig want = SmallLlama();
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("llama")), IsOkAndHolds(want));
  want.qkv_bias = want.out_bias = true;
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("llama", R"("attention_bias": true)")), IsOkAndHolds(want));
  want.out_bias = false;
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("qwen2", R"("use_sliding_window": false, "sliding_window": 4)")),
              IsOkAndHolds(want));
  want.sliding_window = 4;
  const std::string window = R"("use_sliding_window": true, "sliding_window": 4, "max_window_layers": 0)";
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("qwen2", window)), IsOkAndHolds(want));
  want = SmallLlama();
  want.qk_norm = true;
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("qwen3")), IsOkAndHolds(want));
  want.sliding_window = 4;
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("qwen3", window)), IsOkAndHolds(want));
  want.qkv_bias = want.out_bias = true;
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("qwen3", R"("attention_bias": true, )" + window)), IsOkAndHolds(want));
  want = SmallLlama();
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("mistral", R"("sliding_window": null)")), IsOkAndHolds(want));
  want.sliding_window = 5;
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("mistral", R"("sliding_window": 5)")), IsOkAndHolds(want));
}

TEST(HfLlamaConfigTest, MorePositionsThanARunCanHaveAreTakenAndKept) {
  std::string text = LlamaConfig("llama");
  const std::string positions = R"("max_position_embeddings":16)";
  text.replace(text.find(positions), positions.size(), R"("max_position_embeddings": 10485760)");
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(text));
  EXPECT_EQ(config.max_positions, 10485760);
  EXPECT_EQ(config.context, 1 << 20);  // unless the run takes less
  EXPECT_THAT(ModelConfigFromJson(ModelConfigToJson(config)), IsOkAndHolds(config));
}

TEST(HfLlamaConfigTest, TheConfigOfLlama31IsRead) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})"));
  EXPECT_EQ(config.head_dim(), 128);
  EXPECT_EQ(config.kv_heads(), 8);
  EXPECT_EQ(config.ff_width(), 14336);
  EXPECT_EQ(config.layer_norm_eps, 1e-5);
  EXPECT_EQ(config.rotary, (RotaryConfig{500000, RotaryConfig::Scaling::kLlama3, 8, 1, 4, 8192}));
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  EXPECT_EQ(model.num_parameters(), 8030261248);  // as its card says
}

TEST(HfLlamaConfigTest, PositionsAreScaledAsEitherFormSays) {
  ModelConfig want = SmallLlama();
  want.rotary = {.theta = 2000, .scaling = RotaryConfig::Scaling::kLinear, .factor = 4};
  for (const std::string form : {R"("rope_theta": 2000, "rope_scaling": {"type": "linear", "factor": 4.0})",
                                 R"("rope_parameters": {"rope_theta": 2000.0, "rope_type": "linear", "factor": 4})"}) {
    EXPECT_THAT(ModelConfigFromJson(LlamaConfig("llama", form)), IsOkAndHolds(want)) << form;
  }
  want.rotary = {.theta = 2000};
  EXPECT_THAT(
      ModelConfigFromJson(LlamaConfig("qwen3", R"("rope_theta": 2000, "rope_scaling": {"type": "default"})"))->rotary,
      want.rotary);
}

TEST(HfLlamaConfigTest, AYarnHasThePapersNumbersWhereItNamesNone) {
  const auto rotary = [](const std::string& scaling) {
    return ModelConfigFromJson(LlamaConfig("qwen3", R"("rope_scaling": {"rope_type": "yarn", )" + scaling + "}"))
        ->rotary;
  };
  // As Qwen3's cards say it.
  RotaryConfig want = {.scaling = RotaryConfig::Scaling::kYarn, .factor = 4, .original_context = 32768};
  EXPECT_EQ(rotary(R"("factor": 4.0, "original_max_position_embeddings": 32768)"), want);
  want.original_context = SmallLlama().max_positions;
  EXPECT_EQ(rotary(R"("factor": 4.0)"), want);
  want = {.scaling = RotaryConfig::Scaling::kYarn, .factor = 2, .original_context = SmallLlama().max_positions / 2};
  EXPECT_EQ(rotary("\"original_max_position_embeddings\": " + std::to_string(want.original_context)), want);
  for (const std::string key : {"mscale", "attention_factor"}) {
    const std::string more = R"("rope_scaling": {"type": "yarn", "factor": 4, ")" + key + R"(": 0})";
    EXPECT_THAT(ModelConfigFromJson(LlamaConfig("llama", more)), StatusIs(kInvalid, key));
  }
}

TEST(HfLlamaConfigTest, AQwenHasAWindowWhereItsKeysGiveItToEveryLayer) {
  const auto window = [](const std::string& more) {
    const absl::StatusOr<ModelConfig> config = ModelConfigFromJson(LlamaConfig("qwen3", more));
    return config.ok() ? std::to_string(config->sliding_window) : std::string(config.status().message());
  };
  EXPECT_EQ(window(R"("use_sliding_window": true, "max_window_layers": 0)"), "4096");  // transformers' default
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": null, "max_window_layers": 1)"), "0");
  EXPECT_EQ(window(R"("use_sliding_window": false, "sliding_window": 4, "max_window_layers": 1)"), "0");
  EXPECT_THAT(window(R"("use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1)"),
              HasSubstr("max_window_layers: 1, must be 0, or at least num_hidden_layers, 2"));
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": 4, "max_window_layers": 2)"), "0");
  EXPECT_EQ(window(R"("use_sliding_window": true, "sliding_window": 4)"), "0");  // 28: transformers' default
  EXPECT_THAT(window(R"("use_sliding_window": true, "sliding_window": 0, "max_window_layers": 0)"),
              HasSubstr("sliding_window: 0, must be at least 1"));
}

// Bit by bit: qk_norm, qkv_bias, out_bias, a window.
ModelConfig MixOf(int mix) {
  ModelConfig config = SmallLlama();
  config.qk_norm = (mix & 1) != 0;
  config.qkv_bias = (mix & 2) != 0;
  config.out_bias = (mix & 4) != 0;
  config.sliding_window = (mix & 8) != 0 ? 7 : 0;
  return config;
}

TEST(HfLlamaConfigTest, EveryMixOfAttentionIsReadAsItWasWritten) {
  const char* const types[16] = {"llama",     "qwen3",     "qwen2",     "eps_llama", "eps_llama", "eps_llama",
                                 "llama",     "qwen3",     "mistral",   "qwen3",     "qwen2",     "eps_llama",
                                 "eps_llama", "eps_llama", "eps_llama", "qwen3"};
  for (int mix = 0; mix < 16; ++mix) {
    const std::string text = ModelConfigToJson(MixOf(mix));
    EXPECT_EQ(nlohmann::json::parse(text)["model_type"], types[mix]) << mix;
    EXPECT_THAT(ModelConfigFromJson(text), IsOkAndHolds(MixOf(mix))) << mix << ": " << text;
  }
}

TEST(HfLlamaConfigTest, AttentionThatNoArchitectureHasIsNotExported) {
  int written = 0;
  for (int mix = 0; mix < 16; ++mix) {
    const absl::StatusOr<std::string> text = ModelConfigToJson(MixOf(mix), "BF16", {});
    const bool is_own = nlohmann::json::parse(ModelConfigToJson(MixOf(mix)))["model_type"] == "eps_llama";
    EXPECT_EQ(text.ok(), !is_own) << mix;
    written += text.ok() ? 1 : 0;
    if (text.ok()) continue;
    EXPECT_THAT(text, StatusIs(kInvalid, "no other program has this mix")) << mix;
  }
  // Llama with and without biases, Mistral; with and without a window Qwen2, Qwen3, and Qwen3 with biases.
  EXPECT_EQ(written, 9);
  EXPECT_THAT(CheckSaysAll(MixOf(14)), StatusIs(kInvalid,
                                                "model.out_bias: true, model.qkv_bias: true, model.qk_norm: false, "
                                                "model.sliding_window: 7: "));
}

// What transformers 5's Qwen2Config and Qwen3Config ask for windows: their defaults are none, from layer 28 on.
TEST(HfLlamaConfigTest, AWindowIsWrittenForEveryLayerOfAQwen) {
  const auto json = nlohmann::json::parse(ModelConfigToJson(MixOf(8 + 1)));
  EXPECT_EQ(json["use_sliding_window"], true);
  EXPECT_EQ(json["sliding_window"], 7);
  EXPECT_EQ(json["max_window_layers"], 0);
  EXPECT_EQ(json["architectures"], nlohmann::json({"Qwen3ForCausalLM"}));
  EXPECT_EQ(nlohmann::json::parse(ModelConfigToJson(MixOf(8 + 4 + 2 + 1)))["attention_bias"], true);
}

TEST(HfLlamaConfigTest, AGrownQwenWithoutAWindowHasNoneInItsNewLayersEither) {
  const std::string source = LlamaConfig("qwen3", R"("use_sliding_window": true, "max_window_layers": 2)");
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ModelConfigFromJson(source));
  config.num_layers = 3;
  ASSERT_OK_AND_ASSIGN(const std::string grown, ModelConfigToJson(config, "F32", {.source = source}));
  EXPECT_THAT(ModelConfigFromJson(grown), IsOkAndHolds(config)) << grown;
}

TEST(HfLlamaConfigTest, WhatIsWrittenIsReadWithTheSameBits) {
  for (int i = 0; i < 6; ++i) {
    ModelConfig config = SmallLlama();
    config.layer_norm_eps = 1e-5 / 3;
    config.tied_head = i % 2 == 0;
    config.qkv_bias = i == 1 || i == 2;
    config.out_bias = i == 1;
    config.qk_norm = i == 3;
    config.sliding_window = i == 4 ? 7 : 0;
    if (i == 5) config.rotary = {1e6, RotaryConfig::Scaling::kLlama3, 8.5, 1.5, 4.5, 1234};
    if (i == 0) config.rotary = {1e6, RotaryConfig::Scaling::kLinear, 2.5};
    if (i == 1) config.rotary = {1e6, RotaryConfig::Scaling::kDynamic, 2.5};
    if (i == 2 || i == 3) {
      config.rotary = {.theta = 1e6,
                       .scaling = RotaryConfig::Scaling::kYarn,
                       .factor = 4.5,
                       .original_context = 1234,
                       .beta_fast = 30.5,
                       .beta_slow = 1.5,
                       .attention_factor = i == 2 ? 1.25 : 0,
                       .truncate = i == 2};
    }
    EXPECT_THAT(ModelConfigFromJson(ModelConfigToJson(config)), IsOkAndHolds(config)) << i;
  }
}

TEST(HfLlamaConfigTest, AComputationThatIsNotOursIsRefusedByKey) {
  struct Case {
    const char *type, *more;
  };
  for (const Case& c : {
           Case{"llama", R"("hidden_act": "gelu")"},
           Case{"llama", R"("mlp_bias": true)"},
           Case{"llama", R"("rope_scaling": {"rope_type": "longrope", "factor": 4})"},
           Case{"llama", R"("rope_scaling": "linear")"},
           Case{"llama", R"("partial_rotary_factor": 0.5)"},
           Case{"llama", R"("use_sliding_window": true)"},
           Case{"qwen2", R"("use_sliding_window": 1)"},
           Case{"qwen2", R"("attention_bias": true)"},
           Case{"qwen3", R"("attention_bias": "all")"},
           Case{"eps_llama", R"("out_bias": 1)"},
           Case{"eps_llama", R"("model_type": "eps_llama", "qkv_bias": true)"},
           Case{"eps_llama", R"("architectures": ["LlamaForCausalLM"], "out_bias": true)"},
           Case{"qwen3", R"("layer_types": ["full_attention", "sliding_attention"])"},
           Case{"mistral", R"("sliding_window": "x")"},
           Case{"llama", R"("architectures": ["LlamaForSequenceClassification"])"},
           Case{"mistral", R"("architectures": ["LlamaForCausalLM"])"},
           Case{"qwen2", R"("dual_chunk_attention_config": {"chunk_size": 262144})"},
           Case{"qwen3", R"("quantization_config": {"quant_method": "fp8"})"},
           Case{"llama", R"("rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5})"},
           Case{"llama", R"("tie_word_embeddings": 1)"},
       }) {
    const std::string more = c.more, key = more.substr(1, more.find('"', 1) - 1);
    EXPECT_THAT(ModelConfigFromJson(LlamaConfig(c.type, more)), StatusIs(kInvalid, key)) << more;
  }
  EXPECT_OK(ModelConfigFromJson(LlamaConfig("qwen3", R"("layer_types": ["full_attention", "full_attention"])")));
}

TEST(HfLlamaConfigTest, AMistralThatSaysNothingOfAWindowHasTransformersOwn) {
  EXPECT_EQ(ModelConfigFromJson(LlamaConfig("mistral"))->sliding_window, 4096);
  EXPECT_EQ(ModelConfigFromJson(LlamaConfig("mistral", R"("sliding_window": null)"))->sliding_window, 0);
}

TEST(HfLlamaConfigTest, TwoFormsOfPositionsMustSayTheSame) {
  const std::string parameters = R"("rope_parameters": {"rope_theta": 2000, "rope_type": "linear", "factor": 4}, )";
  for (const std::string same : {R"("rope_theta": 2000)", R"("rope_scaling": {"type": "linear", "factor": 4.0})"}) {
    EXPECT_OK(ModelConfigFromJson(LlamaConfig("llama", parameters + same)).status()) << same;
  }
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig("llama", parameters + R"("rope_theta": 3000)")),
              StatusIs(kInvalid, "rope_theta: 3000, must be absent or 2000"));
  EXPECT_THAT(
      ModelConfigFromJson(LlamaConfig("llama", parameters + R"("rope_scaling": {"type": "linear", "factor": 8})")),
      StatusIs(kInvalid, "rope_scaling: {\"factor\":8,\"type\":\"linear\"}, must be absent, or the same"));
}

TEST(HfLlamaConfigTest, PositionsByKindOfLayerAreRefusedByName) {
  EXPECT_THAT(ModelConfigFromJson(LlamaConfig(
                  "qwen3", R"("rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}})")),
              StatusIs(kInvalid, "rope_parameters.full_attention: "));
}

TEST(HfConfigTest, AMemberThatIsThereTwiceIsNamed) {
  const std::string config = Config();
  const std::string with = config.substr(0, config.size() - 1);
  EXPECT_THAT(ModelConfigFromJson(with + R"(, "vocab_size": 98})"), StatusIs(kInvalid, "vocab_size: given twice"));
  EXPECT_THAT(ModelConfigFromJson(with + R"(, "other": [{"a": 1, "b": {"c": 1, "c": 1}}]})"),
              StatusIs(kInvalid, "other[0].b.c: given twice"));
  EXPECT_OK(ModelConfigFromJson(with + R"(, "other": [{"a": 1}, {"a": 1, "vocab_size": "vocab_size"}]})").status());
}

TEST(HfLlamaConfigTest, AMemberOfPositionsIsNamedWithWhatItStandsIn) {
  struct Case {
    const char *scaling, *error;
  };
  for (const Case& c : {
           Case{R"("rope_type": "llama3", "factor": 8)", "original_max_position_embeddings: missing"},
           Case{R"("rope_type": "llama3", "low_freq_factor": "x")", "low_freq_factor: \"x\", must be a number"},
           Case{R"("rope_type": "yarn", "factor": 4, "mscale": 1)", "mscale: 1, must be absent"},
           Case{R"("rope_type": "yarn", "beta_fast": "x")", "beta_fast: \"x\", must be a number"},
           Case{R"("rope_type": "yarn", "truncate": 1)", "truncate: 1, must be true or false"},
           Case{R"("rope_type": "linear", "factor": "x")", "factor: \"x\", must be a number"},
           Case{R"("rope_type": "linear")", "factor: missing"},
           Case{R"("rope_type": "dynamic", "factor": null)", "factor: missing"},
           Case{R"("rope_type": "llama3", "original_max_position_embeddings": 8)", "factor: missing"},
           Case{R"("rope_type": "longrope")", "rope_type: \"longrope\", must be "},
           Case{R"("rope_theta": "x")", "rope_theta: \"x\", must be a number"},
       }) {
    for (const std::string form : {"rope_scaling", "rope_parameters"}) {
      const std::string more = absl::StrCat("\"", form, "\": {", c.scaling, "}");
      const absl::Status status = ModelConfigFromJson(LlamaConfig("llama", more)).status();
      EXPECT_EQ(status.code(), kInvalid);
      EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat(form, ".", c.error))) << status;
    }
  }
}

TEST(HfLlamaConfigTest, ShapesThatDoNotFitAreRefusedByField) {
  struct Case {
    const char *more, *error;
  };
  for (const Case& c : {
           Case{R"("num_key_value_heads": 2)", "model.kv_heads: 2 does not divide model.heads 3"},
           Case{R"("num_key_value_heads": 4)", "model.kv_heads: 4"},
           Case{R"("head_dim": 5)", "model.head_dim: 5, must be even"},
           Case{R"("head_dim": 258)", "model.head_dim: 258"},
           Case{R"("intermediate_size": 0)", "model.d_ff: 0"},
           Case{R"("num_attention_heads": 0)", "model.heads: 0"},
           Case{R"("rope_theta": 0)", "model.rope_theta: 0"},
           Case{R"("rope_scaling": {"type": "linear", "factor": 0.5})", "model.rope_scaling.factor: 0.5"},
           Case{R"("rope_scaling": {"type": "llama3", "factor": 8})", "original_max_position_embeddings: missing"},
       }) {
    // The bad one comes last, and so is the one that is left.
    std::string text = LlamaConfig("llama");
    text = LastOfEach(text.substr(0, text.size() - 1) + ", " + c.more + "}");
    EXPECT_THAT(ModelConfigFromJson(text), StatusIs(kInvalid, c.error)) << c.more;
  }
}

std::string Bert(const std::string& more = "") {
  return LastOfEach("{" + more + (more.empty() ? "" : ",") +
                    R"("model_type": "bert", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2,
            "intermediate_size": 20, "max_position_embeddings": 16, "vocab_size": 99})");
}

TEST(HfBertConfigTest, TheConfigOfBertBaseIsRead) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(R"({
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": false,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.2, "hidden_size": 768, "initializer_range": 0.02,
    "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522})"));
  EXPECT_EQ(config.family, ModelFamily::kBert);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.context, 512);
  EXPECT_EQ(config.d_ff, 3072);
  EXPECT_EQ(config.num_types, 2);
  EXPECT_EQ(config.num_classes, 0);
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_EQ(config.attention_dropout, 0.1);
  EXPECT_EQ(config.embedding_dropout, 0.2);
  EXPECT_EQ(config.residual_dropout, 0.2);
  EXPECT_EQ(config.classifier_dropout, 0.2);
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(config));
  EXPECT_EQ(model.num_parameters(), 109514298);  // as transformers counts BertForMaskedLM's
}

TEST(HfBertConfigTest, AClassifierHasAsManyClassesAsLabels) {
  const std::string task = R"("architectures": ["BertForSequenceClassification"])";
  EXPECT_EQ(ModelConfigFromJson(Bert(task))->num_classes, 2);
  EXPECT_EQ(ModelConfigFromJson(Bert(task + R"(, "id2label": {"0": "a", "1": "b", "2": "c"})"))->num_classes, 3);
  EXPECT_EQ(ModelConfigFromJson(Bert(task + R"(, "num_labels": 7, "classifier_dropout": 0.3)"))->num_classes, 7);
  EXPECT_THAT(ModelConfigFromJson(Bert(task + R"(, "id2label": {"0": "a"})")),
              StatusIs(kInvalid, "num_labels: found 1"));
  EXPECT_THAT(ModelConfigFromJson(Bert(task + R"(, "problem_type": "regression")")),
              StatusIs(kInvalid, "problem_type: \"regression\""));
}

TEST(HfBertConfigTest, ClassesHaveTheFoldersNamesUnlessTheseAreNumbers) {
  const auto read = [](const std::string& labels) {
    return ModelConfigFromJson(
        Bert(R"("architectures": ["BertForSequenceClassification"], "id2label": {)" + labels + "}"));
  };
  const std::vector<std::string> names = {"positive", "negative", "neutral"};
  // By their numbers, whatever their order in the file.
  EXPECT_EQ(read(R"("1": "negative", "2": "neutral", "0": "positive")")->class_names, names);
  EXPECT_EQ(read(R"("0": "LABEL_0", "1": "LABEL_1")")->class_names, std::vector<std::string>());
  EXPECT_THAT(read(R"("0": "a", "2": "b")"),
              StatusIs(kInvalid, "id2label: {\"0\":\"a\",\"2\":\"b\"}, must be a name for"));
  EXPECT_THAT(read(R"("0": "a", "1": 7)"), StatusIs(kInvalid, "id2label: "));
  EXPECT_THAT(read(R"("0": "a", "1": "a")"), StatusIs(kInvalid, "model.class_names: \"a\" is there twice"));
  EXPECT_THAT(read(R"("0": "a", "1": "")"), StatusIs(kInvalid, "model.class_names: \"\" has 0 bytes"));
}

TEST(HfBertConfigTest, ABertModelIsReadAsWhatMayBecomeAClassifier) {
  // Its id2label is transformers' default, and of no head.
  EXPECT_EQ(ModelConfigFromJson(Bert(R"("architectures": ["BertModel"], "id2label": {"0": "LABEL_0"})"))->num_classes,
            0);
  EXPECT_EQ(ModelConfigFromJson(Bert(R"("architectures": ["BertForPreTraining"])"))->num_classes, 0);
}

TEST(HfBertConfigTest, WhatIsWrittenIsReadWithTheSameBits) {
  ModelConfig config = {.family = ModelFamily::kBert, .num_layers = 3, .d_model = 12, .num_heads = 3};
  config.context = config.max_positions = 7;
  config.vocab = 256;
  config.d_ff = 31;
  config.num_types = 3;
  config.layer_norm_eps = 1e-12 / 3;
  config.embedding_dropout = config.residual_dropout = 0.1 + 0.2;
  config.attention_dropout = 0.05;
  config.classifier_dropout = 0.15;
  for (const int64_t num_classes : {0, 2, 11}) {
    config.num_classes = num_classes;
    EXPECT_THAT(ModelConfigFromJson(ModelConfigToJson(config)), IsOkAndHolds(config));
  }
  config.num_classes = 2;
  config.class_names = {"yes", "n\u00f6"};
  EXPECT_THAT(ModelConfigFromJson(ModelConfigToJson(config)), IsOkAndHolds(config));
}

TEST(HfBertConfigTest, AComputationThatIsNotOursIsRefusedByKey) {
  for (const std::string bad :
       {R"("hidden_act": "relu")", R"("position_embedding_type": "relative_key")", R"("is_decoder": true)",
        R"("add_cross_attention": true)", R"("tie_word_embeddings": false)",
        R"("architectures": ["BertForQuestionAnswering"])", R"("architectures": [])"}) {
    const std::string key = bad.substr(1, bad.find('"', 1) - 1);
    EXPECT_THAT(ModelConfigFromJson(Bert(bad)), StatusIs(kInvalid, key + ": ")) << bad;
  }
}

// ---- what a folder's own config.json keeps ----

// The member of what is written over `source`, as text.
std::string Written(const std::string& source, const ModelConfig& config, const std::string& member,
                    const std::string& dtype = "F32") {
  const absl::StatusOr<std::string> text = ModelConfigToJson(config, dtype, {.source = source});
  if (!text.ok()) return std::string(text.status().message());
  EXPECT_THAT(ModelConfigFromJson(*text), IsOkAndHolds(config)) << *text;
  return nlohmann::json::parse(*text).value(member, nlohmann::json("absent")).dump();
}

TEST(HfConfigOverSourceTest, MembersThatNothingHereKnowsAndItsOwnWordsStay) {
  const std::string source = LlamaConfig("mistral", R"("sliding_window": null, "architectures": ["MistralForCausalLM"],
      "bos_token_id": 1, "eos_token_id": [2, 7], "rope_parameters": {"rope_theta": 2000.0, "rope_type": "default"},
      "future": {"a": [1, 2]}, "torch_dtype": "bfloat16")");
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(source));
  for (const auto& [member, want] : std::vector<std::pair<std::string, std::string>>{
           {"model_type", R"("mistral")"},
           {"architectures", R"(["MistralForCausalLM"])"},
           {"sliding_window", "null"},
           {"bos_token_id", "1"},
           {"eos_token_id", "[2,7]"},
           {"rope_parameters", R"({"rope_theta":2000.0,"rope_type":"default"})"},
           {"rope_scaling", R"("absent")"},
           {"future", R"({"a":[1,2]})"},
           {"torch_dtype", R"("float32")"},
       }) {
    EXPECT_EQ(Written(source, config, member), want) << member;
  }
}

TEST(HfConfigOverSourceTest, WhatTheModelSaysOtherwiseNowIsWritten) {
  const std::string source = LlamaConfig("qwen3", R"("layer_types": ["full_attention", "full_attention"])");
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ModelConfigFromJson(source));
  config.num_layers = 3;
  config.attention_dropout = 0.25;
  EXPECT_EQ(Written(source, config, "num_hidden_layers"), "3");
  EXPECT_EQ(Written(source, config, "attention_dropout"), "0.25");
  EXPECT_EQ(Written(source, config, "layer_types"), R"(["full_attention","full_attention","full_attention"])");
}

TEST(HfConfigOverSourceTest, AStrangersListOfLayersStaysAsItIs) {
  const std::string gpt2 = R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16,
                               "vocab_size": 256, "layer_types": ["x"]})";
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ModelConfigFromJson(gpt2));
  config.num_layers = 3;
  EXPECT_EQ(Written(gpt2, config, "layer_types"), R"(["x"])") << "a GPT-2 has no num_hidden_layers";
  for (const std::string list : {R"(["x","y"])", "[]", R"("x")"}) {
    const std::string bert = Bert(R"("layer_types": )" + list);
    ASSERT_OK_AND_ASSIGN(config, ModelConfigFromJson(bert));
    ++config.num_layers;
    EXPECT_EQ(Written(bert, config, "layer_types"), list);
  }
}

TEST(HfConfigOverSourceTest, AClassifierKeepsTheNamesOfItsClassesAndANewOneHasItsOwn) {
  const std::string names = R"("id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1})";
  std::string source = Bert(R"("architectures": ["BertForSequenceClassification"], )" + names);
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ModelConfigFromJson(source));
  EXPECT_EQ(Written(source, config, "id2label"), R"({"0":"no","1":"yes"})");
  source = Bert(R"("architectures": ["BertForPreTraining"])");
  ASSERT_OK_AND_ASSIGN(config, ModelConfigFromJson(source));
  EXPECT_EQ(Written(source, config, "architectures"), R"(["BertForMaskedLM"])");  // its tensors alone are written
  config.num_classes = 2;
  EXPECT_EQ(Written(source, config, "architectures"), R"(["BertForSequenceClassification"])");
  EXPECT_EQ(Written(source, config, "id2label"), R"({"0":"LABEL_0","1":"LABEL_1"})");
}

TEST(HfConfigOverSourceTest, TheTensorsTypeStandsUnderTheNameThatTheSourceHas) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(Config()));
  EXPECT_EQ(Written(Config(), config, "torch_dtype", "BF16"), R"("bfloat16")");
  EXPECT_EQ(Written(Config(R"("dtype": "float32")"), config, "dtype", "F16"), R"("float16")");
  EXPECT_EQ(Written(Config(R"("dtype": "float32")"), config, "torch_dtype", "F16"), R"("absent")");
}

TEST(HfConfigOverSourceTest, TokensThatAreGivenTakeTheSourcesPlace) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(Config()));
  for (const std::string& source : {std::string(), Config(R"("eos_token_id": 3)")}) {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         ModelConfigToJson(config, "F32", {.source = source, .bos_token_id = 5, .eos_token_id = 6}));
    EXPECT_EQ(nlohmann::json::parse(text)["bos_token_id"], 5);
    EXPECT_EQ(nlohmann::json::parse(text)["eos_token_id"], 6);
  }
  ASSERT_OK_AND_ASSIGN(
      const std::string several,
      ModelConfigToJson(config, "F32", {.source = Config(R"("eos_token_id": [3, 6, 9])"), .eos_token_id = 6}));
  EXPECT_EQ(nlohmann::json::parse(several)["eos_token_id"], nlohmann::json({6, 3, 9}));
}

TEST(HfConfigOverSourceTest, AnExportHasNoAdapters) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ModelConfigFromJson(Config()));
  EXPECT_EQ(Written(Config(R"("eps_lora": {"rank": 4, "alpha": 8})"), config, "eps_lora"), R"("absent")");
  EXPECT_EQ(Written("", config, "eps_lora"), R"("absent")");
}

TEST(HfConfigOverSourceTest, ASourceOfAnotherFamilyIsRefused) {
  EXPECT_THAT(ModelConfigToJson(SmallLlama(), "F32", {.source = Config()}), StatusIs(kInvalid, "model_type: \"gpt2\""));
  EXPECT_THAT(ModelConfigToJson(SmallLlama(), "F32", {.source = "[]"}), StatusIs(kInvalid, "not a JSON object"));
}

TEST(HfConfigTest, MissingAndMistypedKeysAreNamed) {
  EXPECT_THAT(ModelConfigFromJson(R"({"model_type": "gpt2"})"), StatusIs(kInvalid, "n_layer: missing"));
  EXPECT_THAT(ModelConfigFromJson(R"({"model_type": "gpt2", "n_layer": null})"),
              StatusIs(kInvalid, "n_layer: missing"));
  EXPECT_THAT(ModelConfigFromJson(R"({"model_type": "gpt2", "n_layer": "2"})"),
              StatusIs(kInvalid, "n_layer: \"2\", must be a whole number"));
  EXPECT_THAT(ModelConfigFromJson(R"({"model_type": "gpt2", "n_layer": 2.5})"), StatusIs(kInvalid, "n_layer: 2.5"));
  EXPECT_THAT(ModelConfigFromJson(R"({"model_type": "gpt2", "n_layer": 18446744073709551615})"),
              StatusIs(kInvalid, "n_layer"));
  EXPECT_THAT(ModelConfigFromJson(Config(R"("attn_pdrop": "x")")), StatusIs(kInvalid, "attn_pdrop: \"x\""));
  EXPECT_THAT(ModelConfigFromJson(Config(R"("attn_pdrop": 1)")), StatusIs(kInvalid, "attention_dropout"));
}

TEST(HfConfigTest, TextThatIsNoJsonObjectIsRefused) {
  for (const std::string bad : {"", "[", "[]", "3", "{", "\xFF\xFE", "{\"n_layer\": 2,}"}) {
    EXPECT_THAT(ModelConfigFromJson(bad), StatusIs(kInvalid, "JSON")) << bad;
  }
}

TEST(HfConfigTest, DeeplyNestedJsonDoesNotOverflowTheStack) {
  EXPECT_THAT(ModelConfigFromJson(std::string(1000000, '[')), StatusIs(kInvalid, "JSON"));
  // A value is shown in the message, and shown by recursion.
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(ModelConfigFromJson("{\"n_layer\": " + nested + "}"), StatusIs(kInvalid, "nested too deeply"));
  EXPECT_THAT(ModelConfigFromJson("{\"unknown\": " + nested + ", " + Config().substr(1)),
              StatusIs(kInvalid, "nested too deeply"));
  EXPECT_OK(ModelConfigFromJson(Config("\"unknown\": [[[[[[[[{}]]]]]]]]")).status());
}

}  // namespace
}  // namespace eps
