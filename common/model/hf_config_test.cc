#include "common/model/hf_config.h"

#include <string>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// The smallest config that is taken, with `more` ("\"key\": value, ...") in front.
std::string Config(const std::string& more = "") {
  return "{" + more + (more.empty() ? "" : ",") +
         R"("model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 99})";
}

TEST(HfConfigTest, ASmallConfigIsRead) {
  ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Gpt2ConfigFromJson(Config()));
  Gpt2Config want;
  want.num_layers = 2;
  want.d_model = 8;
  want.num_heads = 2;
  want.context = 16;
  want.vocab = 99;
  EXPECT_EQ(config, want);
}

TEST(HfConfigTest, TheConfigOfGpt2IsRead) {
  ASSERT_OK_AND_ASSIGN(const Gpt2Config config, Gpt2ConfigFromJson(R"({
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
  Gpt2Config config;
  config.num_layers = 3;
  config.d_model = 12;
  config.num_heads = 3;
  config.context = 7;
  config.vocab = 256;
  config.layer_norm_eps = 1e-5 / 3;
  config.residual_dropout = 0.1 + 0.2;
  EXPECT_THAT(Gpt2ConfigFromJson(Gpt2ConfigToJson(config)), IsOkAndHolds(config));
}

TEST(HfConfigTest, TheOldNameOfTheContextIsTaken) {
  ASSERT_OK_AND_ASSIGN(
      const Gpt2Config config,
      Gpt2ConfigFromJson(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_ctx":5,"vocab_size":9})"));
  EXPECT_EQ(config.context, 5);
}

TEST(HfConfigTest, AComputationThatIsNotOursIsRefusedByKey) {
  for (const std::string bad :
       {R"("activation_function": "relu")", R"("tie_word_embeddings": false)",
        R"("scale_attn_by_inverse_layer_idx": true)", R"("scale_attn_weights": false)",
        R"("reorder_and_upcast_attn": true)", R"("add_cross_attention": true)", R"("n_inner": 31)"}) {
    const std::string key = bad.substr(1, bad.find('"', 1) - 1);
    EXPECT_THAT(Gpt2ConfigFromJson(Config(bad)), StatusIs(kInvalid, key + ": ")) << bad;
  }
  EXPECT_OK(Gpt2ConfigFromJson(Config(R"("n_inner": 32, "activation_function": "gelu_pytorch_tanh")")));
}

TEST(HfConfigTest, AnotherModelIsRefused) {
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"model_type":"llama","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,
                                     "vocab_size":9})"),
              StatusIs(kInvalid, "model_type: \"llama\", must be \"gpt2\""));
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})"),
              StatusIs(kInvalid, "model_type: missing"));
}

TEST(HfConfigTest, MissingAndMistypedKeysAreNamed) {
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"model_type": "gpt2"})"), StatusIs(kInvalid, "n_layer: missing"));
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"model_type": "gpt2", "n_layer": null})"), StatusIs(kInvalid, "n_layer: missing"));
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"model_type": "gpt2", "n_layer": "2"})"),
              StatusIs(kInvalid, "n_layer: \"2\", must be a whole number"));
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"model_type": "gpt2", "n_layer": 2.5})"), StatusIs(kInvalid, "n_layer: 2.5"));
  EXPECT_THAT(Gpt2ConfigFromJson(R"({"model_type": "gpt2", "n_layer": 18446744073709551615})"),
              StatusIs(kInvalid, "n_layer"));
  EXPECT_THAT(Gpt2ConfigFromJson(Config(R"("attn_pdrop": "x")")), StatusIs(kInvalid, "attn_pdrop: \"x\""));
  EXPECT_THAT(Gpt2ConfigFromJson(Config(R"("attn_pdrop": 1)")), StatusIs(kInvalid, "attention_dropout"));
}

TEST(HfConfigTest, TextThatIsNoJsonObjectIsRefused) {
  for (const std::string bad : {"", "[", "[]", "3", "{", "\xFF\xFE", "{\"n_layer\": 2,}"}) {
    EXPECT_THAT(Gpt2ConfigFromJson(bad), StatusIs(kInvalid, "JSON")) << bad;
  }
}

TEST(HfConfigTest, DeeplyNestedJsonDoesNotOverflowTheStack) {
  EXPECT_THAT(Gpt2ConfigFromJson(std::string(1000000, '[')), StatusIs(kInvalid, "JSON"));
  // A value is shown in the message, and shown by recursion.
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(Gpt2ConfigFromJson("{\"n_layer\": " + nested + "}"), StatusIs(kInvalid, "nested too deeply"));
  EXPECT_THAT(Gpt2ConfigFromJson(Config("\"unknown\": " + nested)), StatusIs(kInvalid, "nested too deeply"));
  EXPECT_OK(Gpt2ConfigFromJson(Config("\"unknown\": [[[[[[[[{}]]]]]]]]")).status());
}

}  // namespace
}  // namespace eps
