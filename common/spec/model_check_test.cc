#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/spec/testing.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RunConfigTest, AModelOfTheLlamaFamilyIsReadWithItsDefaults) {
  const std::string base = std::string(kSmall);
  RunConfig config = MustLoad(base, {{"model.family", "LLAMA"}, {"model.d_ff", "20"}});
  const ModelConfig& model = config.model;
  EXPECT_EQ(model.family, ModelFamily::kLlama);
  EXPECT_EQ(model.num_kv_heads, model.num_heads);
  EXPECT_EQ(model.d_head, model.d_model / model.num_heads);
  EXPECT_EQ(model.d_ff, 20);
  EXPECT_EQ(model.max_positions, model.context);
  EXPECT_FALSE(model.tied_head);
  EXPECT_EQ(model.rotary, RotaryConfig{});
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  config = MustLoad(base, {{"model.family", "LLAMA"},
                           {"model.d_ff", "20"},
                           {"model.kv_heads", "1"},
                           {"model.head_dim", "6"},
                           {"model.tied_head", "true"},
                           {"model.qkv_bias", "true"},
                           {"model.out_bias", "true"},
                           {"model.qk_norm", "true"},
                           {"model.sliding_window", "3"},
                           {"model.rope_theta", "500"},
                           {"model.rope_scaling.type", "LLAMA3"},
                           {"model.rope_scaling.factor", "8"},
                           {"model.rope_scaling.original_context", "99"},
                           {"model.max_positions", "1000"}});
  EXPECT_EQ(
      config.model.rotary,
      (RotaryConfig{.theta = 500, .scaling = RotaryConfig::Scaling::kLlama3, .factor = 8, .original_context = 99}));
  EXPECT_EQ(config.model.max_positions, 1000);
  EXPECT_TRUE(config.model.qk_norm && config.model.out_bias && config.model.tied_head);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, ExpertsAreReadWithTheirDefaultsAndKept) {
  const std::string base = std::string(kSmall);
  const std::vector<FieldOverride> llama = {{"model.family", "LLAMA"}, {"model.d_ff", "20"}};
  const auto with = [&](std::vector<FieldOverride> more) {
    more.insert(more.begin(), llama.begin(), llama.end());
    return more;
  };
  RunConfig config = MustLoad(base, with({{"model.experts.num", "4"}, {"model.experts.per_token", "2"}}));
  EXPECT_EQ(config.model.experts, (ExpertsConfig{.num = 4, .per_token = 2}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  config = MustLoad(base, with({{"model.experts.num", "4"},
                                {"model.experts.per_token", "1"},
                                {"model.experts.normalize", "false"},
                                {"model.experts.balance", "0.01"}}));
  EXPECT_EQ(config.model.experts, (ExpertsConfig{.num = 4, .per_token = 1, .normalizes = false, .balance = 0.01}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(Load(base, with({{"model.experts.num", "4"}})), StatusIs(kInvalid, "model.experts.per_token: missing"));
  EXPECT_THAT(Load(base, with({{"model.experts.balance", "1"}})), StatusIs(kInvalid, "model.experts.num: missing"));
  EXPECT_THAT(Load(base, with({{"model.experts.num", "4"}, {"model.experts.per_token", "5"}})),
              StatusIs(kInvalid, "model.experts.per_token: 5, must be between 1 and 4"));
  EXPECT_THAT(Load(base, {{"model.experts.num", "4"}, {"model.experts.per_token", "2"}}),
              StatusIs(kInvalid, "model.experts.num: given, but it is of family: LLAMA"));
  EXPECT_THAT(
      Load(base,
           with({{"model.experts.num", "4"}, {"model.experts.per_token", "2"}, {"batch.feed_forward_tile", "64"}})),
      StatusIs(kInvalid, "batch.feed_forward_tile: not with model.experts"));
}

TEST_F(RunConfigTest, EachScalingOfPositionsHasItsOwnFields) {
  const auto overrides = [](std::vector<FieldOverride> more) {
    more.insert(more.begin(), {{"model.family", "LLAMA"}, {"model.d_ff", "20"}, {"model.rope_scaling.factor", "4"}});
    return more;
  };
  RunConfig config = MustLoad(kSmall, overrides({{"model.rope_scaling.type", "YARN"},
                                                 {"model.rope_scaling.beta_fast", "16"},
                                                 {"model.rope_scaling.truncate", "false"},
                                                 {"model.rope_scaling.original_context", "99"}}));
  EXPECT_EQ(config.model.rotary, (RotaryConfig{.scaling = RotaryConfig::Scaling::kYarn,
                                               .factor = 4,
                                               .original_context = 99,
                                               .beta_fast = 16,
                                               .truncate = false}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  config = MustLoad(kSmall, overrides({{"model.rope_scaling.type", "DYNAMIC"}}));
  EXPECT_EQ(config.model.rotary, (RotaryConfig{.scaling = RotaryConfig::Scaling::kDynamic, .factor = 4}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));

  const std::vector<std::pair<std::vector<FieldOverride>, std::string>> refused = {
      {{{"model.rope_scaling.type", "LLAMA3"}, {"model.rope_scaling.beta_slow", "1"}},
       "model.rope_scaling.beta_slow: given, but it is of type: YARN"},
      {{{"model.rope_scaling.type", "YARN"}, {"model.rope_scaling.low_freq_factor", "1"}},
       "model.rope_scaling.low_freq_factor: given, but it is of type: LLAMA3"},
      {{{"model.rope_scaling.original_context", "9"}}, "original_context: given, but it is of type: LLAMA3 or YARN"},
      {{{"model.rope_scaling.type", "YARN"}, {"model.rope_scaling.beta_fast", "0.5"}},
       "model.rope_scaling.beta_fast: 0.5, must be at least 1"},
      {{{"model.rope_scaling.type", "YARN"}, {"model.rope_theta", "1"}}, "model.rope_theta: 1, must be"},
      {{{"model.rope_scaling.type", "YARN"}, {"model.rope_scaling.attention_factor", "-1"}}, "attention_factor: -1"}};
  for (const auto& [more, message] : refused) {
    EXPECT_THAT(Load(kSmall, overrides(more)), StatusIs(kInvalid, message)) << message;
  }
}

constexpr char kBert[] = R"(
model { family: BERT layers: 1 d_model: 8 heads: 2 context: 4 vocab: 300 d_ff: 20 dropout: 0.1 classifier_dropout: 0.2 }
data { path: "a.txt" mask { token: 256 never: 10 never: 13 } }
optimizer { schedule { peak: 0.1 } }
steps: 3
)";

TEST_F(RunConfigTest, ABertIsReadWithItsDefaults) {
  RunConfig config = MustLoad(kBert);
  EXPECT_EQ(config.objective(), Objective::kMaskedTokens);
  EXPECT_EQ(config.model.num_types, 2);
  EXPECT_EQ(config.model.max_positions, 4);
  EXPECT_EQ(config.model.residual_dropout, 0.1);
  EXPECT_EQ(config.model.classifier_dropout, 0.2);
  EXPECT_EQ(config.data.mask, (MaskConfig{.share = 0.15, .token = 256, .never = {10, 13}}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(DifferencesThatMatter(config, MustLoad(kBert, {{"data.mask.share", "0.2"}})),
              ElementsAre(HasSubstr("data.mask.share")));
}

TEST_F(RunConfigTest, WhatABertDoesNotTakeIsRefused) {
  const std::vector<std::pair<std::vector<FieldOverride>, std::string>> refused = {
      {{{"model.head_dim", "4"}}, "model.head_dim: given, but it is of family: LLAMA"},
      {{{"data.mask.token", "300"}}, "data.mask.token: 300, must be at most 299"},
      {{{"data.mask.share", "0"}}, "data.mask.share: 0, must be greater than 0"},
      {{{"data.text_column", "a"}}, "data.text_column: given, but data.path is no table"}};
  for (const auto& [overrides, message] : refused) {
    EXPECT_THAT(Load(kBert, overrides), StatusIs(kInvalid, message)) << message;
  }
  EXPECT_THAT(Load(R"(model { family: BERT layers: 1 d_model: 8 heads: 2 context: 4 vocab: 300 d_ff: 20 }
                      data { path: "a.txt" } optimizer { schedule { peak: 0.1 } } steps: 3)"),
              StatusIs(kInvalid, "data.mask.token: missing"));
}

TEST_F(RunConfigTest, WhatIsOfTheOtherFamilyIsRefused) {
  EXPECT_THAT(Load(kSmall, {{"model.d_ff", "20"}}),
              StatusIs(kInvalid, "model.d_ff: given, but it is of family: LLAMA or BERT"));
  EXPECT_THAT(Load(kSmall, {{"model.rope_scaling.factor", "2"}}),
              StatusIs(kInvalid, "model.rope_scaling: given, but it is of family: LLAMA"));
  EXPECT_THAT(Load(kSmall, {{"model.classes", "2"}}),
              StatusIs(kInvalid, "model.classes: given, but it is of family: BERT"));
  EXPECT_THAT(Load(kSmall, {{"model.family", "LLAMA"}}), StatusIs(kInvalid, "model.d_ff: missing"));
  EXPECT_THAT(Load(kSmall, {{"model.family", "LLAMA"}, {"model.d_ff", "20"}, {"model.dropout", "0.1"}}),
              StatusIs(kInvalid, "model.dropout: 0.1, this family has it in attention alone: model.attention_dropout"));
  EXPECT_OK(Load(kSmall, {{"model.family", "LLAMA"}, {"model.d_ff", "20"}, {"model.dropout", "0"}}));
  EXPECT_THAT(Load(kSmall, {{"model.family", "LLAMA"}, {"model.d_ff", "20"}, {"model.residual_dropout", "0.1"}}),
              StatusIs(kInvalid, "model.residual_dropout: 0.1, this family has none"));
}

TEST_F(RunConfigTest, HeadsThatDoNotDivideTheWidthAreRefused) {
  EXPECT_THAT(Load(kExample, {{"model.heads", "5"}}),
              StatusIs(kInvalid, "run.textproto with --set: model.heads: 5 does not divide model.d_model 384"));
}

TEST_F(RunConfigTest, OneDropoutIsAllThreeAndANamedOneGoesFirst) {
  const RunConfig config = MustLoad(kSmall, {{"model.dropout", "0.1"}, {"model.attention_dropout", "0"}});
  EXPECT_EQ(config.model.embedding_dropout, 0.1);
  EXPECT_EQ(config.model.attention_dropout, 0);
  EXPECT_EQ(config.model.residual_dropout, 0.1);
}

TEST_F(RunConfigTest, TheLargestSeedsAreKept) {
  const RunConfig config = MustLoad(kSmall, {{"model.init_seed", "18446744073709551615"}});
  EXPECT_EQ(config.model.init_seed, std::numeric_limits<uint64_t>::max());
}

TEST_F(RunConfigTest, FrozenTensorsAreKeptInOrderAndMatter) {
  std::string text = kSmall;
  text.insert(text.find("layers"), R"(freeze: ["*", "!transformer.h.0.*"] )");
  const RunConfig run = MustLoad(text, {{"model.freeze", "*.bias"}});
  EXPECT_THAT(run.model.freeze, ElementsAre("*", "!transformer.h.0.*", "*.bias"));
  ASSERT_OK_AND_ASSIGN(const RunConfig again, ParseRunConfig(SerializeRunConfig(run)));
  EXPECT_EQ(again, run);
  EXPECT_THAT(
      DifferencesThatMatter(MustLoad(text), run),
      ElementsAre(R"(model.freeze: was ["*", "!transformer.h.0.*"], now ["*", "!transformer.h.0.*", "*.bias"])"));
  EXPECT_THAT(DifferencesThatMatter(MustLoad(kSmall), MustLoad(kSmall, {{"model.freeze", "*.bias"}})),
              ElementsAre(R"(model.freeze: was absent, now ["*.bias"])"));
  EXPECT_THAT(LoadWith("model.freeze", "*.biass"), StatusIs(kInvalid, R"(model.freeze: "*.biass" matches no tensor)"));
  EXPECT_THAT(LoadWith("model.freeze", "*"), StatusIs(kInvalid, "model.freeze: every tensor is frozen"));
}

// ---- adapters

TEST_F(RunConfigTest, AdaptersAreReadWithTheirDefaultsAndKept) {
  EXPECT_EQ(MustLoad(kSmall).model.lora, LoraConfig{});
  RunConfig run = MustLoad(kSmall, {{"model.lora.rank", "4"}});
  EXPECT_EQ(run.model.lora, (LoraConfig{.rank = 4, .alpha = 4}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(run)), IsOkAndHolds(run));
  std::string text = kSmall;
  text.insert(text.find("layers"),
              R"(lora { rank: 2 alpha: 0.1 dropout: 0.05 rank_stabilized: true targets: "c_fc" } )");
  run = MustLoad(text, {{"model.lora.targets", "attn.c_proj"}, {"model.freeze", "!*.ln_1.*"}});
  EXPECT_EQ(
      run.model.lora,
      (LoraConfig{
          .rank = 2, .alpha = 0.1, .dropout = 0.05, .rank_stabilized = true, .targets = {"c_fc", "attn.c_proj"}}));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(run)), IsOkAndHolds(run));
}

TEST_F(RunConfigTest, AdaptersThatDifferAreNamedByField) {
  const std::vector<FieldOverride> small = {{"model.lora.rank", "4"}};
  const auto differences = [&](const std::vector<FieldOverride>& was, const std::vector<FieldOverride>& now) {
    return DifferencesThatMatter(MustLoad(kSmall, was), MustLoad(kSmall, now));
  };
  EXPECT_THAT(differences({}, small), ElementsAre("model.lora: was absent, now given"));
  EXPECT_THAT(differences(small, {}), ElementsAre("model.lora: was given, now absent"));
  EXPECT_THAT(differences(small, {{"model.lora.rank", "4"}, {"model.lora.alpha", "4"}}), ElementsAre());
  EXPECT_THAT(differences(small, {{"model.lora.rank", "8"}, {"model.lora.rank_stabilized", "true"}}),
              ElementsAre("model.lora.rank: was 4, now 8", "model.lora.alpha: was 4, now 8",
                          "model.lora.rank_stabilized: was absent, now true"));
  EXPECT_THAT(differences(small, {{"model.lora.rank", "4"}, {"model.lora.targets", "c_fc"}}),
              ElementsAre(R"(model.lora.targets: was absent, now ["c_fc"])"));
}

TEST_F(RunConfigTest, AdaptersThatNoModelHasAreRefusedByField) {
  const std::vector<std::pair<std::vector<FieldOverride>, std::string>> refused = {
      {{{"model.lora.targets", "c_fc"}}, "model.lora.rank: missing"},
      {{{"model.lora.rank", "0"}}, "model.lora.rank: 0, must be between 1 and 4096"},
      {{{"model.lora.rank", "-3"}}, "model.lora.rank: -3, must be between 1 and 4096"},
      {{{"model.lora.rank", "4"}, {"model.lora.alpha", "nan"}}, "model.lora.alpha: nan, must be greater than 0"},
      {{{"model.lora.rank", "4"}, {"model.lora.dropout", "1"}}, "model.lora.dropout: 1, must be at least 0"},
      {{{"model.lora.rank", "4"}, {"model.lora.targets", "q_proj"}}, "model.lora.targets: \"q_proj\" names no product"},
      {{{"model.lora.rank", "4"}, {"model.freeze", "*"}}, "model.freeze: every tensor is frozen"}};
  for (const auto& [overrides, message] : refused) {
    EXPECT_THAT(Load(kSmall, overrides), StatusIs(kInvalid, message)) << message;
  }
}

// ---- model.from

constexpr char kFrom[] = R"(
model { from: "gpt2" }  data { path: "a.txt" tokenizer: BYTES }  optimizer { schedule { peak: 0.1 } }  steps: 3)";

TEST_F(RunConfigTest, AModelFromAFolderHasThatFoldersShapeAndDropouts) {
  ModelConfig model;
  model.num_layers = 2;
  model.d_model = 8;
  model.num_heads = 2;
  model.context = 16;
  model.vocab = 99;
  model.attention_dropout = 0.25;
  WriteHfFolder(ModelConfigToJson(model));
  const RunConfig config = MustLoad(kFrom);
  EXPECT_EQ(config.model, model);
  EXPECT_EQ(config.model_from, dir_.File("gpt2"));
  EXPECT_EQ(MustLoad(kFrom, {{"model.init_seed", "3"}}).model.init_seed, 3u);
  EXPECT_EQ(MustLoad(kFrom, {{"model.dropout", "0"}}).model.attention_dropout, 0);
}

TEST_F(RunConfigTest, AModelFromAFolderSurvivesSerialisationWithoutTheFolder) {
  WriteHfFolder(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})");
  const RunConfig config = MustLoad(kFrom);
  std::filesystem::remove_all(dir_.File("gpt2"));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
}

TEST_F(RunConfigTest, AFoldersAdaptersGoOnAndTheirDropoutAloneMayStandBesideThem) {
  ModelConfig model = {.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 16, .vocab = 99};
  WriteHfFolder(ModelConfigToJson(model));
  EXPECT_EQ(MustLoad(kFrom, {{"model.lora.rank", "3"}}).model.lora, (LoraConfig{.rank = 3, .alpha = 3}));
  model.lora = {.rank = 4, .alpha = 8, .rank_stabilized = true, .targets = {"c_fc"}};
  WriteHfFolder(ModelConfigToJson(model));
  const RunConfig config = MustLoad(kFrom);
  EXPECT_EQ(config.model, model);
  std::filesystem::remove_all(dir_.File("gpt2"));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  WriteHfFolder(ModelConfigToJson(model));
  for (const char* rank : {"3", "4"}) {
    EXPECT_THAT(Load(kFrom, {{"model.lora.rank", rank}}),
                StatusIs(kInvalid, "model.lora: given, and model.from has adapters, which go on as they are"));
  }
  model.lora.dropout = 0.25;
  EXPECT_EQ(MustLoad(kFrom, {{"model.lora.dropout", "0.25"}}).model, model);
  EXPECT_THAT(Load(kFrom, {{"model.lora.dropout", "1"}}), StatusIs(kInvalid, "model.lora.dropout: 1, must be"));
  EXPECT_THAT(Load(kFrom, {{"model.lora.dropout", "0.25"}, {"model.lora.alpha", "8"}}),
              StatusIs(kInvalid, "model.lora: given, and model.from has adapters"));
}

TEST_F(RunConfigTest, AShapeBesideAFolderIsRefused) {
  WriteHfFolder(R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})");
  for (const std::string field : {"layers", "d_model", "heads", "context", "vocab"}) {
    EXPECT_THAT(Load(kFrom, {{"model." + field, "2"}}),
                StatusIs(kInvalid, "model." + field + ": given beside model.from"));
  }
}

TEST_F(RunConfigTest, BesideAFolderExpertsMayBeBalancedAndNothingElse) {
  ModelConfig model = {.family = ModelFamily::kLlama, .num_layers = 1, .d_model = 8, .num_heads = 2};
  model.context = model.max_positions = 5;
  model.vocab = 256;
  model.num_kv_heads = 2;
  model.d_head = 4;
  model.d_ff = 6;
  WriteHfFolder(ModelConfigToJson(model));
  EXPECT_THAT(Load(kFrom, {{"model.experts.balance", "0.1"}}),
              StatusIs(kInvalid, "model.experts: given, and model.from has none"));
  model.experts = {.num = 3, .per_token = 2};
  WriteHfFolder(ModelConfigToJson(model));
  EXPECT_EQ(MustLoad(kFrom).model.experts, model.experts);
  model.experts.balance = 0.1;
  const RunConfig config = MustLoad(kFrom, {{"model.experts.balance", "0.1"}});
  EXPECT_EQ(config.model.experts, model.experts);
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(Load(kFrom, {{"model.experts.per_token", "1"}}),
              StatusIs(kInvalid, "model.experts.per_token: given beside model.from"));
}

// ---- names of classes

constexpr char kClassifierModel[] = R"(
model { family: BERT layers: 1 d_model: 8 heads: 2 context: 4 vocab: 256 d_ff: 20 class_names: ["up", "down"] }
data { path: "a.tsv" }  optimizer { schedule { peak: 0.1 } }  steps: 3)";

TEST_F(RunConfigTest, ClassesMayBeNamedAndAreThenAsMany) {
  const RunConfig config = MustLoad(kClassifierModel);
  EXPECT_EQ(config.model.num_classes, 2);
  EXPECT_THAT(config.model.class_names, ElementsAre("up", "down"));
  EXPECT_THAT(ParseRunConfig(SerializeRunConfig(config)), IsOkAndHolds(config));
  EXPECT_THAT(DifferencesThatMatter(config, MustLoad(kClassifierModel, {{"model.class_names", "left"}})),
              ElementsAre("model.classes: was 2, now 3",
                          R"(model.class_names: was ["up", "down"], now ["up", "down", "left"])"));
  EXPECT_THAT(Load(kClassifierModel, {{"model.classes", "3"}}),
              StatusIs(kInvalid, "model.class_names: 2 names, but model.classes is 3"));
  EXPECT_THAT(Load(kClassifierModel, {{"model.class_names", "up"}}), StatusIs(kInvalid, "\"up\" is there twice"));
  EXPECT_THAT(Load(kClassifierModel, {{"model.class_names", std::string(257, 'x')}}),
              StatusIs(kInvalid, "has 257 bytes"));
  EXPECT_THAT(Load(kClassifierModel, {{"model.class_names", "gr\xfcn"}}),
              StatusIs(kInvalid, R"(model.class_names: "gr\xfcn" is not UTF-8)"));
  std::vector<FieldOverride> long_names;
  for (int i = 1000; i < 1000 + (1 << 12); ++i) {
    long_names.push_back({"model.class_names", std::to_string(i) + std::string(252, 'x')});
  }
  EXPECT_THAT(Load(kClassifierModel, long_names), StatusIs(kInvalid, "bytes in all, must be at most 1048576"));
  EXPECT_THAT(Load(kSmall, {{"model.class_names", "up"}}),
              StatusIs(kInvalid, "model.class_names: given, but it is of family: BERT"));
}

TEST_F(RunConfigTest, ARunThatGoesOnHasTheNamesThatItBeganWithAndNoneIfItHadNone) {
  WriteHfFolder(R"({"model_type":"bert","architectures":["BertForSequenceClassification"],"num_hidden_layers":1,
                    "hidden_size":8,"num_attention_heads":2,"intermediate_size":20,"max_position_embeddings":16,
                    "vocab_size":256,"id2label":{"0":"positive","1":"negative"}})");
  std::string text = kFrom;
  text.replace(text.find("a.txt"), 5, "a.tsv");
  const RunConfig now = MustLoad(text);
  for (const std::vector<std::string>& names : {std::vector<std::string>{}, {"no", "yes"}}) {
    RunConfig was = now;
    was.model.class_names = names;
    const auto resumed = [&](const std::vector<FieldOverride>& overrides) {
      return LoadResumedRunConfig(dir_.File("run.textproto"), overrides, was);
    };
    ASSERT_OK_AND_ASSIGN(const RunConfig again, resumed({}));
    EXPECT_EQ(again.model.class_names, names);
    EXPECT_THAT(DifferencesThatMatter(was, again), ElementsAre());
    ASSERT_OK_AND_ASSIGN(const RunConfig named, resumed({{"model.class_names", "a"}, {"model.class_names", "b"}}));
    EXPECT_THAT(DifferencesThatMatter(was, named), ElementsAre(HasSubstr("model.class_names: was ")));
    ASSERT_OK_AND_ASSIGN(const RunConfig other, resumed({{"model.classes", "3"}}));
    EXPECT_THAT(DifferencesThatMatter(was, other), Contains("model.classes: was 2, now 3"));
  }
}

TEST_F(RunConfigTest, AClassifiersFolderNamesItsClassesUnlessOthersAreAskedFor) {
  WriteHfFolder(R"({"model_type":"bert","architectures":["BertForSequenceClassification"],"num_hidden_layers":1,
                    "hidden_size":8,"num_attention_heads":2,"intermediate_size":20,"max_position_embeddings":16,
                    "vocab_size":256,"id2label":{"0":"positive","1":"negative"}})");
  std::string text = kFrom;
  text.replace(text.find("a.txt"), 5, "a.tsv");
  const auto names = [&](const std::vector<FieldOverride>& overrides) {
    return MustLoad(text, overrides).model.class_names;
  };
  EXPECT_THAT(names({}), ElementsAre("positive", "negative"));
  EXPECT_THAT(names({{"model.classes", "2"}}), ElementsAre("positive", "negative"));
  EXPECT_THAT(names({{"model.classes", "3"}}), ElementsAre());
  EXPECT_THAT(names({{"model.class_names", "good"}, {"model.class_names", "bad"}}), ElementsAre("good", "bad"));
  EXPECT_THAT(
      Load(text, {{"model.class_names", "negative"}, {"model.class_names", "positive"}}),
      StatusIs(kInvalid, "model.class_names: those of model.from in another order, which is positive, negative"));
}

TEST_F(RunConfigTest, AFolderThatIsMissingOrWrongIsNamed) {
  EXPECT_THAT(Load(kFrom), StatusIs(absl::StatusCode::kNotFound, "model.from: "));
  EXPECT_THAT(Load(kFrom), StatusIs(absl::StatusCode::kNotFound, dir_.File("gpt2/config.json")));
  EXPECT_THAT(Load(kFrom),
              StatusIs(absl::StatusCode::kNotFound, "; nothing is downloaded: give a folder that is there"));
  WriteHfFolder(R"({"model_type":"t5","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":9})");
  EXPECT_THAT(Load(kFrom), StatusIs(kInvalid, "gpt2/config.json: model_type: \"t5\""));
  WriteHfFolder(R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":8,"num_attention_heads":2,
                    "intermediate_size":20,"max_position_embeddings":5,"vocab_size":9})");
  ASSERT_OK_AND_ASSIGN(RunConfig config, Load(kFrom, {{"model.context", "3"}}));
  EXPECT_EQ(config.model.family, ModelFamily::kLlama);
  EXPECT_EQ(config.model.context, 3);
  EXPECT_EQ(config.model.max_positions, 5);
  EXPECT_THAT(Load(kFrom, {{"model.context", "6"}}), StatusIs(kInvalid, "model.context: 6, the model is made for 5"));
  EXPECT_THAT(Load(kFrom, {{"model.kv_heads", "1"}}), StatusIs(kInvalid, "model.kv_heads: given beside model.from"));
  EXPECT_THAT(Load(kFrom, {{"model.from", ""}}), StatusIs(kInvalid, "model.from: is empty"));
}

TEST_F(RunConfigTest, OfARunTheFolderOfOneCheckpointIsAskedFor) {
  ASSERT_OK(MakeDirs(dir_.File("run/checkpoints")));
  ASSERT_OK(WriteFileAtomically(dir_.File("run/checkpoints/latest"), "step-00000200\n"));
  for (const char* path : {"run", "run/checkpoints", "run/checkpoints/latest"}) {
    EXPECT_THAT(std::string(Load(kFrom, {{"model.from", dir_.File(path)}}).status().message()),
                HasSubstr("; of a run give the folder of one checkpoint, as DIR/checkpoints/step-00000200"))
        << path;
  }
}

}  // namespace
}  // namespace eps
