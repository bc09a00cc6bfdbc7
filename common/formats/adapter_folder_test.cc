#include "common/formats/adapter_folder.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/formats/adapter_parts.h"
#include "common/formats/adapter_testing.h"
#include "common/formats/safetensors.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

TEST(AdapterFolderTest, TheConfigIsWhatPeftReads) {
  const auto config_of = [](const ModelConfig& config, const AdapterForm& form) {
    const ModelSpec model = BuildModel(config).value();
    return nlohmann::json::parse(AdapterConfigToJson(config, form, PartsOfAdapter(model, config).value()));
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
  const nlohmann::json classifier = config_of(ClassifierWithAdapters(), {});
  EXPECT_EQ(classifier["task_type"], "SEQ_CLS");
  EXPECT_EQ(classifier["modules_to_save"], nlohmann::json::array({"classifier"}));
}

TEST(AdapterFolderTest, TheFolderHasTheTensorsInItsDtypeAndTheFilesBeside) {
  TempDir dir;
  const ModelSpec model = BuildModel(ConfigWithAdapters(ModelFamily::kLlama)).value();
  const AdapterForm form = {.dtype = "BF16", .base_values = "NF4", .files = {{"tokenizer.json", "{}"}}};
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, std::nullopt));
  const auto fill = [](const TensorSpec&, int64_t first, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(first + static_cast<int64_t>(i));
    return absl::OkStatus();
  };
  ASSERT_OK(WriteAdapterFolder(dir.File("out"), model.config, form, parts, fill));
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.File("out"))) files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}));
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(dir.File("out/adapter_model.safetensors")));
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"eps_base_values", "NF4"}, {"format", "pt"}}));
  EXPECT_EQ(file->entries().size(), 3 * 7 * 2);
  const SafetensorsEntry* b = file->Find("base_model.model.model.layers.2.mlp.up_proj.lora_B.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "BF16");
  EXPECT_THAT(b->shape, testing::ElementsAre(20, 2));
  std::vector<float> values(40);
  ASSERT_OK(file->ReadFloats(*b, absl::MakeSpan(values)));
  EXPECT_EQ(values[39], 39);
}

TEST(AdapterFolderTest, WhatFailsLeavesNothing) {
  TempDir dir;
  const ModelSpec model = BuildModel(ConfigWithAdapters(ModelFamily::kLlama)).value();
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, std::nullopt));
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
