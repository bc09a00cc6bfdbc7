#include "common/formats/adapter_folder.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/formats/safetensors.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/lora.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Names = std::vector<std::string>;

ModelConfig ConfigWithAdapters(ModelFamily family, const Names& targets = {}) {
  ModelConfig config = {.family = family, .num_layers = 3, .d_model = 12, .num_heads = 3, .context = 8, .vocab = 17};
  config.lora = {.rank = 2, .alpha = 4, .targets = targets};
  if (family == ModelFamily::kGpt2) return config;
  config.max_positions = 8;
  config.d_ff = 20;
  if (family == ModelFamily::kBert) {
    config.num_types = 2;
    return config;
  }
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.tied_head = false;
  return config;
}

ModelConfig Classifier(const Names& targets = {}) {
  ModelConfig config = ConfigWithAdapters(ModelFamily::kBert, targets);
  config.num_classes = 3;
  return config;
}

// Without a look at the tensors, which are gone with the model.
absl::StatusOr<AdapterParts> Parts(const ModelConfig& config, const AdapterForm& form = {}) {
  absl::StatusOr<AdapterParts> parts = PartsOfAdapter(BuildModel(config).value(), form);
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

TEST(AdapterFolderTest, TargetsAreTheLastPartsOfNamesWhereTheseSayIt) {
  const auto targets = [](const ModelConfig& config) { return Parts(config).value().target_modules; };
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kLlama)),
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kGpt2)), ElementsAre("c_attn", "c_fc", "c_proj"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kLlama, {"self_attn.v_proj", "q_proj"})),
              ElementsAre("q_proj", "v_proj"));
  // "dense" would be the pooler's, too, and "output.dense" either of two.
  EXPECT_THAT(targets(Classifier()), ElementsAre("intermediate.dense", "key", "output.dense", "query", "value"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kBert)),
              ElementsAre("intermediate.dense", "key", "output.dense", "query", "value"));
  EXPECT_THAT(targets(Classifier({"attention.output.dense"})), ElementsAre("attention.output.dense"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kGpt2, {"mlp.c_proj"})), ElementsAre("mlp.c_proj"));
  EXPECT_THAT(targets(ConfigWithAdapters(ModelFamily::kGpt2, {"1.mlp.c_proj"})), ElementsAre("1.mlp.c_proj"));
}

TEST(AdapterFolderTest, TargetsAreTheAdaptedModulesAndNoneElseOfTheWholeModel) {
  const Names bert = {"bert.pooler",
                      "bert.pooler.dense",
                      "cls.predictions.transform.dense",
                      "cls.predictions.decoder",
                      "cls.seq_relationship",
                      "dropout",
                      "classifier"};
  for (const Names& targets : {Names{}, Names{"query"}, Names{"attention.output.dense"}, Names{"2.output.dense"},
                               Names{"intermediate.dense", "1.attention.output.dense"}}) {
    for (const ModelConfig& config : {Classifier(targets), ConfigWithAdapters(ModelFamily::kBert, targets)}) {
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

TEST(AdapterFolderTest, ModulesThatWereTrainedWholeAreSaved) {
  ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama);
  EXPECT_THAT(Parts(config).value().modules_to_save, IsEmpty());
  config.freeze = {"!model.norm.*", "!*.1.input_layernorm.*", "!lm_head.*"};
  const ModelSpec model = BuildModel(config).value();
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, {}));
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

TEST(AdapterFolderTest, OfAClassifierAllIsSavedThatTheBaseMayNotHave) {
  const auto saved = [](const ModelConfig& config, const AdapterForm& form) {
    return Parts(config, form).value().modules_to_save;
  };
  ModelConfig other_classes = Classifier();
  other_classes.num_classes = 5;
  EXPECT_THAT(saved(Classifier(), {.base_config = Classifier()}), ElementsAre("classifier"));
  EXPECT_THAT(saved(Classifier(), {.base_config = other_classes}), ElementsAre("classifier"));
  EXPECT_THAT(saved(Classifier(), {.base_config = ConfigWithAdapters(ModelFamily::kBert)}),
              testing::UnorderedElementsAre("bert.pooler.dense", "classifier"));
  EXPECT_THAT(saved(Classifier(), {}), testing::UnorderedElementsAre("bert.pooler.dense", "classifier"));
  EXPECT_THAT(saved(ConfigWithAdapters(ModelFamily::kBert), {}), IsEmpty());
}

TEST(AdapterFolderTest, WhatPeftCannotHaveIsRefusedByTheModulesName) {
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

TEST(AdapterFolderTest, TheConfigIsWhatPeftReads) {
  const auto config_of = [](const ModelConfig& config, const AdapterForm& form) {
    return nlohmann::json::parse(AdapterConfigToJson(config, form, Parts(config, form).value()));
  };
  ModelConfig gpt2 = ConfigWithAdapters(ModelFamily::kGpt2, {"c_attn"});
  EXPECT_EQ(config_of(gpt2, {.base_model = "/models/gpt2"}),
            nlohmann::json::parse(R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4,
                "base_model_name_or_path": "/models/gpt2", "use_rslora": false, "lora_dropout": 0.0, "bias": "none",
                "fan_in_fan_out": true, "inference_mode": true, "init_lora_weights": true, "target_modules": ["c_attn"],
                "layers_to_transform": null, "modules_to_save": null})"));
  ModelConfig llama = ConfigWithAdapters(ModelFamily::kLlama);
  llama.lora.alpha = 1.5;
  llama.lora.rank_stabilized = true;
  llama.lora.dropout = 0.25;
  const nlohmann::json of_llama = config_of(llama, {});
  EXPECT_EQ(of_llama["lora_alpha"], 1.5);
  EXPECT_EQ(of_llama["use_rslora"], true);
  EXPECT_EQ(of_llama["lora_dropout"], 0.25);
  EXPECT_EQ(of_llama["fan_in_fan_out"], false);
  EXPECT_TRUE(of_llama["base_model_name_or_path"].is_null());
  EXPECT_TRUE(config_of(ConfigWithAdapters(ModelFamily::kBert), {})["task_type"].is_null());
  const nlohmann::json classifier = config_of(Classifier(), {.base_config = Classifier()});
  EXPECT_EQ(classifier["task_type"], "SEQ_CLS");
  EXPECT_EQ(classifier["modules_to_save"], nlohmann::json::array({"classifier"}));
}

TEST(AdapterFolderTest, TheFolderHasTheTensorsInItsDtypeAndTheFilesBeside) {
  TempDir dir;
  const ModelSpec model = BuildModel(ConfigWithAdapters(ModelFamily::kLlama)).value();
  const AdapterForm form = {.dtype = "BF16", .files = {{"tokenizer.json", "{}"}}};
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, form));
  const auto fill = [](const TensorSpec&, int64_t first, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(first + static_cast<int64_t>(i));
    return absl::OkStatus();
  };
  ASSERT_OK(WriteAdapterFolder(dir.File("out"), model.config, form, parts, fill));
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.File("out"))) files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}));
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(dir.File("out/adapter_model.safetensors")));
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file->entries().size(), 3 * 7 * 2);
  const SafetensorsEntry* b = file->Find("base_model.model.model.layers.2.mlp.up_proj.lora_B.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "BF16");
  EXPECT_THAT(b->shape, ElementsAre(20, 2));
  std::vector<float> values(40);
  ASSERT_OK(file->ReadFloats(*b, absl::MakeSpan(values)));
  EXPECT_EQ(values[39], 39);
}

TEST(AdapterFolderTest, WhatFailsLeavesNothing) {
  TempDir dir;
  const ModelSpec model = BuildModel(ConfigWithAdapters(ModelFamily::kLlama)).value();
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, {}));
  const auto fail = [](const TensorSpec& tensor, int64_t, absl::Span<float>) {
    return tensor.lora == LoraPart::kB ? absl::DataLossError("no") : absl::OkStatus();
  };
  EXPECT_THAT(WriteAdapterFolder(dir.File("out"), model.config, {}, parts, fail),
              StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_THAT(WriteAdapterFolder(dir.File("out"), model.config, {.dtype = "F64"}, parts, fail),
              StatusIs(kInvalid, "F64"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  std::ofstream(dir.File("kept")) << "x";
  EXPECT_THAT(WriteAdapterFolder(dir.path(), model.config, {}, parts, fail),
              StatusIs(absl::StatusCode::kAlreadyExists, "not empty"));
}

}  // namespace
}  // namespace eps
