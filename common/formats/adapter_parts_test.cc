#include "common/formats/adapter_parts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/formats/adapter_testing.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/lora.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Names = std::vector<std::string>;

// Without a look at the tensors, which are gone with the model.
absl::StatusOr<AdapterParts> Parts(const ModelConfig& config, const std::optional<ModelConfig>& base = std::nullopt) {
  absl::StatusOr<AdapterParts> parts = PartsOfAdapter(BuildModel(config).value(), base);
  if (parts.ok()) parts->tensors.clear();
  return parts;
}

// As PEFT has it: check_target_module_exists.
bool IsTargeted(const std::string& module, const Names& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    return module == target || absl::EndsWith(module, absl::StrCat(".", target));
  });
}

// That `targets` name the modules of the model that have an adapter, and of those that transformers' class has beside
// them `others`, none.
void ExpectExact(const ModelConfig& config, const Names& targets, const Names& others) {
  const ModelSpec model = BuildModel(config).value();
  std::set<std::string> modules, adapted;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora != LoraPart::kNone) adapted.emplace(ModuleOf(tensor));
      for (std::string name = tensor.name; absl::StrContains(name, "."); modules.insert(name)) {
        name.resize(name.rfind('.'));
      }
    }
  }
  modules.insert(others.begin(), others.end());
  for (const std::string& module : modules) {
    if (absl::StrContains(module, ".lora_")) continue;
    EXPECT_EQ(IsTargeted(module, targets), adapted.contains(module)) << module;
  }
}

TEST(AdapterPartsTest, TargetsAreTheLastPartsOfNamesWhereTheseSayIt) {
  const auto targets = [](const ModelConfig& config) { return Parts(config).value().target_modules; };
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kLlama)),
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kGpt2)), ElementsAre("c_attn", "c_fc", "c_proj"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kLlama, {"self_attn.v_proj", "q_proj"})),
              ElementsAre("q_proj", "v_proj"));
  // "dense" would be the pooler's, too, and "output.dense" either of two.
  EXPECT_THAT(targets(ClassifierWithAdapters()),
              ElementsAre("intermediate.dense", "key", "output.dense", "query", "value"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kBert)),
              ElementsAre("intermediate.dense", "key", "output.dense", "query", "value"));
  EXPECT_THAT(targets(ClassifierWithAdapters({"attention.output.dense"})), ElementsAre("attention.output.dense"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kGpt2, {"mlp.c_proj"})), ElementsAre("mlp.c_proj"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kGpt2, {"1.mlp.c_proj"})), ElementsAre("1.mlp.c_proj"));
}

TEST(AdapterPartsTest, TargetsAreTheAdaptedModulesAndNoneElseOfTheWholeModel) {
  const Names bert = {"bert.pooler",
                      "bert.pooler.dense",
                      "cls.predictions.transform.dense",
                      "cls.predictions.decoder",
                      "cls.seq_relationship",
                      "dropout",
                      "classifier"};
  for (const Names& targets : {Names{}, Names{"query"}, Names{"attention.output.dense"}, Names{"2.output.dense"},
                               Names{"intermediate.dense", "1.attention.output.dense"}}) {
    for (const ModelConfig& config :
         {ClassifierWithAdapters(targets), ConfigWithAdapters(ModelFamily::kBert, targets)}) {
      ASSERT_OK_AND_ASSIGN(const AdapterParts parts, Parts(config));
      ExpectExact(config, parts.target_modules, bert);
    }
  }
  for (const Names& targets : {Names{}, Names{"c_proj"}, Names{"attn.c_proj"}, Names{"h.1.mlp.c_proj", "c_attn"}}) {
    const ModelConfig config = ConfigWithAdapters(ModelFamily::kGpt2, targets);
    ASSERT_OK_AND_ASSIGN(const AdapterParts parts, Parts(config));
    ExpectExact(config, parts.target_modules, {"lm_head", "transformer.h.1.attn.resid_dropout", "transformer.drop"});
  }
  ModelConfig deep = ConfigWithAdapters(ModelFamily::kLlama, {"model.layers.1.mlp.up_proj", "0.self_attn.q_proj"});
  deep.num_layers = 12;  // 1 and 11, 0 and 10
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, Parts(deep));
  ExpectExact(deep, parts.target_modules, {"lm_head", "model.rotary_emb", "model.layers.1.mlp.act_fn"});
}

TEST(AdapterPartsTest, ModulesThatWereTrainedWholeAreSaved) {
  ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama);
  EXPECT_THAT(Parts(config).value().modules_to_save, IsEmpty());
  config.freeze = {"!model.norm.*", "!*.1.input_layernorm.*", "!lm_head.*"};
  const ModelSpec model = BuildModel(config).value();
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, std::nullopt));
  EXPECT_THAT(parts.modules_to_save,
              testing::UnorderedElementsAre("model.norm", "model.layers.1.input_layernorm", "lm_head"));
  Names names;
  for (const NamedTensor& named : parts.tensors) {
    EXPECT_EQ(named.name, "base_model.model." + named.tensor->name);
    if (named.tensor->lora == LoraPart::kNone) names.push_back(named.name);
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("base_model.model.model.norm.weight",
                                                   "base_model.model.model.layers.1.input_layernorm.weight",
                                                   "base_model.model.lm_head.weight"));
  EXPECT_EQ(parts.tensors.size(), 3 * 7 * 2 + 3);
}

TEST(AdapterPartsTest, OfAClassifierAllIsSavedThatTheBaseMayNotHave) {
  const auto saved = [](const ModelConfig& config, const std::optional<ModelConfig>& base) {
    return Parts(config, base).value().modules_to_save;
  };
  ModelConfig other_classes = ClassifierWithAdapters();
  other_classes.num_classes = 5;
  EXPECT_THAT(saved(ClassifierWithAdapters(), ClassifierWithAdapters()), ElementsAre("classifier"));
  EXPECT_THAT(saved(ClassifierWithAdapters(), other_classes), ElementsAre("classifier"));
  EXPECT_THAT(saved(ClassifierWithAdapters(), ConfigWithAdapters(ModelFamily::kBert)),
              testing::UnorderedElementsAre("bert.pooler.dense", "classifier"));
  EXPECT_THAT(saved(ClassifierWithAdapters(), std::nullopt),
              testing::UnorderedElementsAre("bert.pooler.dense", "classifier"));
  EXPECT_THAT(saved(ConfigWithAdapters(ModelFamily::kBert), std::nullopt), IsEmpty());
}

TEST(AdapterPartsTest, WhatPeftCannotHaveIsRefusedByTheModulesName) {
  const auto refused = [](ModelFamily family, const Names& freeze, const std::string& one, const std::string& other) {
    ModelConfig config = ConfigWithAdapters(family);
    config.freeze = freeze;
    const absl::Status status = Parts(config).status();
    EXPECT_THAT(status, StatusIs(kInvalid, one));
    EXPECT_THAT(status, StatusIs(kInvalid, other));
    EXPECT_THAT(status, StatusIs(kInvalid, "leave --adapter out"));
  };
  refused(ModelFamily::kGpt2, {"!*.1.ln_1.bias"}, "module transformer.h.1.ln_1: transformer.h.1.ln_1.bias was trained",
          "transformer.h.1.ln_1.weight was not");
  refused(ModelFamily::kGpt2, {"!*.attn.c_attn.bias"}, "module transformer.h.0.attn.c_attn has an adapter",
          "transformer.h.0.attn.c_attn.bias was trained");
  refused(ModelFamily::kLlama, {"!*.2.*.q_proj.weight"}, "module model.layers.2.self_attn.q_proj has an adapter",
          "q_proj.weight was trained");
  refused(ModelFamily::kGpt2, {"!*.wte.*"}, "module transformer.wte was trained", "is the head's table");
  refused(ModelFamily::kBert, {"!cls.predictions.bias"}, "module cls.predictions: cls.predictions.bias was trained",
          "cls.predictions.decoder was not");
  ModelConfig untied = ConfigWithAdapters(ModelFamily::kLlama);
  untied.freeze = {"!*.embed_tokens.*"};
  EXPECT_THAT(Parts(untied).value().modules_to_save, ElementsAre("model.embed_tokens"));
}

}  // namespace
}  // namespace eps
