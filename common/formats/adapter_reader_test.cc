#include "common/formats/adapter_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/formats/adapter_folder.h"
#include "common/formats/adapter_parts.h"
#include "common/formats/adapter_testing.h"
#include "common/formats/safetensors.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;
using testing::ElementsAre;

// A value of its own for each element.
float AdapterValue(const TensorSpec& tensor, int64_t elem) {
  return static_cast<float>(std::hash<std::string>()(tensor.name) % 97) + static_cast<float>(elem);
}

class AdapterReaderTest : public testing::Test {
 protected:
  // What the adapters of `config` are exported as.
  void Write(const ModelConfig& config, const std::string& dtype = "F32") {
    const ModelSpec model = BuildModel(config).value();
    AdapterParts parts = PartsOfAdapter(model, WithoutAdapters(config)).value();
    parts.modules_to_save.clear();
    std::erase_if(parts.tensors, [](const NamedTensor& named) { return named.tensor->lora == LoraPart::kNone; });
    std::filesystem::remove_all(folder_);
    ASSERT_OK(WriteAdapterFolder(folder_, config, {.dtype = dtype}, parts,
                                 [](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                   for (size_t i = 0; i < values.size(); ++i) {
                                     values[i] = AdapterValue(tensor, first + static_cast<int64_t>(i));
                                   }
                                   return absl::OkStatus();
                                 }));
  }
  // Other names, types and shapes; the bytes are zeros.
  void WriteEntries(const std::function<void(SafetensorsEntry&)>& edit) {
    std::vector<SafetensorsEntry> entries = SafetensorsReader::Open(tensors_path_).value()->entries();
    for (SafetensorsEntry& entry : entries) edit(entry);
    std::erase_if(entries, [](const SafetensorsEntry& entry) { return entry.name.empty(); });
    const auto writer = SafetensorsWriter::Create(tensors_path_, entries, {}).value();
    for (size_t i = 0; i < entries.size(); ++i) {
      int64_t num_bytes = entries[i].dtype == "F64" ? 8 : entries[i].dtype == "F32" ? 4 : 2;
      for (const int64_t dim : entries[i].shape) num_bytes *= dim;
      ASSERT_OK(writer->Write(i, 0, std::vector<std::byte>(static_cast<size_t>(num_bytes))));
    }
    ASSERT_OK(writer->Finish());
  }
  absl::StatusOr<std::unique_ptr<AdapterReader>> Open(const ModelConfig& config) const {
    return AdapterReader::Open(folder_, WithoutAdapters(config));
  }
  void ExpectRefused(const ModelConfig& config, const std::string& why) {
    EXPECT_THAT(Open(config).status(), StatusIs(absl::StatusCode::kInvalidArgument, why));
  }

  TempDir dir_;
  const std::string folder_ = dir_.File("peft"), config_path_ = folder_ + "/adapter_config.json",
                    tensors_path_ = folder_ + "/adapter_model.safetensors";
};

std::set<std::string> AdaptersIn(const ModelSpec& model) {
  std::set<std::string> names;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora != LoraPart::kNone) names.insert(tensor.name);
    }
  }
  return names;
}

TEST_F(AdapterReaderTest, WhatIsExportedComesBackInEveryFamilyAndDtype) {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kBert}) {
    for (const char* dtype : {"F32", "BF16", "F16"}) {
      ModelConfig config = ConfigWithAdapters(family);
      config.lora = {.rank = 3, .alpha = 1.5, .dropout = 0.25, .rank_stabilized = true};
      Write(config, dtype);
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> reader, Open(config));
      EXPECT_EQ(reader->model().config, config);
      for (const BlobSpec& blob : reader->model().blobs) {
        for (const TensorSpec& tensor : blob.tensors) {
          if (tensor.lora == LoraPart::kNone) continue;
          std::vector<float> values(static_cast<size_t>(tensor.num_elems()) - 2);
          ASSERT_OK(reader->ReadPart(tensor, 1, absl::MakeSpan(values)));
          for (size_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(values[i], AdapterValue(tensor, static_cast<int64_t>(i) + 1)) << tensor.name << " " << i;
          }
        }
      }
    }
  }
}

TEST_F(AdapterReaderTest, TargetsAreThoseWhoseTensorsAreThere) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama, {"q_proj", "1.self_attn.v_proj", "2.mlp.up_proj"});
  Write(config);
  // However the config says it: by an expression, as "all-linear", or not at all.
  for (const json& targets : {json(".*proj"), json("all-linear"), json(json::array({"v_proj"})), json()}) {
    json object = json::parse(ReadFile(config_path_).value());
    object["target_modules"] = targets;
    ASSERT_OK(WriteFileAtomically(config_path_, object.dump()));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> reader, Open(config));
    EXPECT_THAT(reader->model().config.lora.targets, ElementsAre("1.self_attn.v_proj", "2.mlp.up_proj", "q_proj"));
    EXPECT_EQ(AdaptersIn(reader->model()), AdaptersIn(BuildModel(config).value()));
  }
}

TEST_F(AdapterReaderTest, TensorsMayBeNamedAsOtherVersionsDo) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kGpt2);
  const auto opens = [&](const std::function<void(std::string&)>& rename) {
    Write(config);
    WriteEntries([&](SafetensorsEntry& entry) { rename(entry.name); });
    EXPECT_THAT(Open(config).status(), IsOk());
  };
  opens([](std::string& name) { name.insert(name.rfind(".weight"), ".default"); });
  opens([](std::string& name) { name.erase(0, std::string("base_model.model.").size()); });
  opens([](std::string& name) { name = "base_model.model." + name.substr(name.find("h.")); });  // of a GPT2Model
}

TEST_F(AdapterReaderTest, WhatIsNotLoraBesideABlocksProductsIsRefusedByTensor) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama);
  const std::string up = "base_model.model.model.layers.1.mlp.up_proj.";
  const auto edited = [&](const std::string& name, const std::function<void(SafetensorsEntry&)>& edit) {
    Write(config);
    WriteEntries([&](SafetensorsEntry& entry) {
      if (entry.name == name) edit(entry);
    });
  };
  edited(up + "lora_A.weight", [](SafetensorsEntry& entry) { entry.shape = {3, 12}; });
  ExpectRefused(config, tensors_path_ + ": tensor " + up + "lora_A.weight at byte ");
  ExpectRefused(config, " has the shape (3, 12), adapter_config.json and the model ask for (2, 12)");
  edited(up + "lora_A.weight", [](SafetensorsEntry& entry) { entry.dtype = "F64"; });
  ExpectRefused(config, " is F64, not F32, F16 or BF16");
  edited(up + "lora_B.weight", [](SafetensorsEntry& entry) { entry.name.clear(); });
  ExpectRefused(config, tensors_path_ + ": tensor model.layers.1.mlp.up_proj.lora_B.weight is missing");
  for (const std::string other :
       {"base_model.model.lm_head.lora_A.weight", "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.3.mlp.up_proj.lora_A.weight",
        "base_model.model.model.layers.1.mlp.up_proj.lora_magnitude_vector"}) {
    edited(up + "lora_B.weight", [&](SafetensorsEntry& entry) { entry.name = other; });
    ExpectRefused(config, "tensor " + other + " at byte ");
    ExpectRefused(config, "is no A or B beside a product of the model's blocks");
  }
  // Of a vocabulary that has grown.
  edited(up + "lora_B.weight", [&](SafetensorsEntry& entry) {
    entry.name = "base_model.model.lm_head.weight";
    entry.shape = {18, 12};
  });
  ExpectRefused(config, "has the shape (18, 12), adapter_config.json and the model ask for (17, 12)");
  edited(up + "lora_B.weight", [](SafetensorsEntry& entry) { entry.name.insert(entry.name.rfind(".weight"), ".two"); });
  ExpectRefused(config, "is of another adapter than those before it");
  edited(up + "lora_B.weight", [](SafetensorsEntry& entry) {
    entry.name = "model.layers.1.mlp.up_proj.lora_A.weight";
    entry.shape = {2, 12};
  });
  ExpectRefused(config, " is there twice, also as ");
  Write(config);
  WriteEntries([](SafetensorsEntry& entry) { entry.name.clear(); });
  ExpectRefused(config, "holds no adapter");
  Write(ConfigWithAdapters(ModelFamily::kGpt2));
  ExpectRefused(config, "it goes on top of another model");
}

TEST_F(AdapterReaderTest, WholeTensorsTakeThePlaceOfTheBases) {
  const ModelConfig config = ClassifierWithAdapters({"query"});
  const ModelSpec model = BuildModel(config).value();
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, std::nullopt));
  ASSERT_OK(WriteAdapterFolder(folder_, config, {}, parts, [](const TensorSpec&, int64_t, absl::Span<float> values) {
    std::fill(values.begin(), values.end(), 0.5f);
    return absl::OkStatus();
  }));
  // Of masked tokens, and a classifier.
  for (const int64_t classes : {0, 3}) {
    ModelConfig base = config;
    base.num_classes = classes;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> reader, Open(base));
    EXPECT_EQ(reader->model().config, config);
    std::set<std::string> whole;
    for (const BlobSpec& blob : reader->model().blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        EXPECT_TRUE(reader->has(tensor) || tensor.lora == LoraPart::kNone) << tensor.name;
        if (reader->has(tensor) && tensor.lora == LoraPart::kNone) whole.insert(tensor.name);
      }
    }
    EXPECT_THAT(whole, ElementsAre("bert.pooler.dense.bias", "bert.pooler.dense.weight", "classifier.bias",
                                   "classifier.weight"));
  }
  ModelConfig other = config;
  other.num_classes = 4;
  ExpectRefused(other, "has the shape (3, 12), adapter_config.json and the model ask for (4, 12)");
}

TEST_F(AdapterReaderTest, ModulesThatAreNamedAndNotThereAreMissed) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kGpt2);
  Write(config);
  json object = json::parse(ReadFile(config_path_).value());
  object["modules_to_save"] = {"score"};
  ASSERT_OK(WriteFileAtomically(config_path_, object.dump()));
  ExpectRefused(config, tensors_path_ + ": holds none of the whole modules that adapter_config.json names");
}

TEST_F(AdapterReaderTest, ATableThatIsTheHeadsTooIsNotReplaced) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kGpt2);
  Write(config);
  WriteEntries([](SafetensorsEntry& entry) {
    if (entry.name != "base_model.model.transformer.h.1.mlp.c_fc.lora_A.weight") return;
    entry.name = "base_model.model.transformer.wte.weight";
    entry.shape = {17, 12};
  });
  ExpectRefused(config, "tensor base_model.model.transformer.wte.weight at byte ");
  ExpectRefused(config, " is the head's table, too");
}

TEST_F(AdapterReaderTest, OfSomeBlocksAlone) {
  ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama);
  config.num_layers = 32;
  Write(config);
  // As layers_to_transform has it.
  WriteEntries([](SafetensorsEntry& entry) {
    for (int block = 0; block < 16; ++block) {
      if (absl::StrContains(entry.name, absl::StrCat(".layers.", block, "."))) entry.name.clear();
    }
  });
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> reader, Open(config));
  EXPECT_EQ(reader->model().config.lora.targets.size(), 16u * 7);
  EXPECT_EQ(AdaptersIn(reader->model()).size(), 16u * 7 * 2);
}

TEST_F(AdapterReaderTest, MoreTargetsThanARunMayHaveAreRefused) {
  ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama);
  config.num_layers = 1100;
  Write(config);
  WriteEntries([](SafetensorsEntry& entry) {  // of every block but the last a single one
    if (!absl::StrContains(entry.name, "q_proj") || absl::StrContains(entry.name, ".1099.")) entry.name.clear();
  });
  ExpectRefused(config, tensors_path_ + ": of 1099 adapted weights: model.lora.targets: 1099, must be at most 1024");
}

TEST_F(AdapterReaderTest, AValueThatIsNotFiniteIsNamedByItsByte) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kGpt2);
  Write(config, "BF16");
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(tensors_path_));
  bytes.replace(bytes.size() - 4, 2, "\x80\x7f");  // infinity, of the last tensor's last but one element
  ASSERT_OK(WriteFileAtomically(tensors_path_, bytes));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> reader, Open(config));
  TensorSpec last;  // of the file
  for (const BlobSpec& blob : reader->model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.name == "transformer.h.2.mlp.c_proj.lora_B.weight") last = tensor;
    }
  }
  ASSERT_EQ(last.num_elems(), 12 * 2);
  std::vector<float> values(3);
  EXPECT_THAT(reader->ReadPart(last, last.num_elems() - 3, absl::MakeSpan(values)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       absl::StrCat(tensors_path_, ": tensor base_model.model.", last.name, ", element ",
                                    last.num_elems() - 2, " at byte ", bytes.size() - 4, ": inf, must be finite")));
}

TEST_F(AdapterReaderTest, FilesThatAreNotThereAreNamed) {
  const ModelConfig config = ConfigWithAdapters(ModelFamily::kLlama);
  EXPECT_THAT(Open(config).status(), StatusIs(absl::StatusCode::kNotFound, config_path_));
  Write(config);
  std::filesystem::remove(tensors_path_);
  EXPECT_THAT(Open(config).status(), StatusIs(absl::StatusCode::kNotFound, tensors_path_));
  ASSERT_OK(WriteFileAtomically(folder_ + "/adapter_model.bin", ""));
  EXPECT_THAT(Open(config).status(), StatusIs(absl::StatusCode::kNotFound, "save the adapter as safetensors"));
  ASSERT_OK(WriteFileAtomically(config_path_, "{\"peft_type\": \"LORA\"}"));
  EXPECT_THAT(Open(config).status(), StatusIs(absl::StatusCode::kInvalidArgument, config_path_ + ": r: "));
}

// ---- adapter_config.json ----

absl::Status ParseWith(const std::string& member, const json& value) {
  json config = {{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"lora_dropout", 0.0}};
  config[member] = value;
  return ParseAdapterConfig(config.dump()).status();
}

TEST(AdapterConfigTest, WhatChangesNothingIsTakenAndAlphaIsPeftsOwnWhereItIsAbsent) {
  ASSERT_OK_AND_ASSIGN(const AdapterConfig short_one, ParseAdapterConfig(R"({"peft_type": "LORA", "r": 4})"));
  EXPECT_EQ(short_one.lora, (LoraConfig{.rank = 4, .alpha = 8}));
  EXPECT_EQ(short_one.base_model, "");
  EXPECT_EQ(ParseAdapterConfig(R"({"peft_type": "LORA", "r": 4, "base_model_name_or_path": "x/y"})")->base_model,
            "x/y");
  for (const auto& [member, value] : std::vector<std::pair<std::string, json>>{{"bias", "none"},
                                                                               {"modules_to_save", nullptr},
                                                                               {"modules_to_save", {"classifier"}},
                                                                               {"rank_pattern", json::object()},
                                                                               {"use_dora", false},
                                                                               {"init_lora_weights", "gaussian"},
                                                                               {"init_lora_weights", false},
                                                                               {"layers_to_transform", {1, 2}},
                                                                               {"task_type", "SEQ_CLS"},
                                                                               {"fan_in_fan_out", true},
                                                                               {"revision", "main"},
                                                                               {"init_lora_weights", "Gaussian"},
                                                                               {"peft_version", "0.18.0"},
                                                                               {"future", nullptr},
                                                                               {"future", ""}}) {
    EXPECT_OK(ParseWith(member, value)) << member;
  }
}

TEST(AdapterConfigTest, WhatIsMoreThanLoraIsRefusedByItsMember) {
  for (const auto& [member, value] : std::vector<std::pair<std::string, json>>{{"peft_type", "LOHA"},
                                                                               {"peft_type", nullptr},
                                                                               {"use_dora", true},
                                                                               {"bias", "all"},
                                                                               {"lora_bias", true},
                                                                               {"rank_pattern", {{"q_proj", 4}}},
                                                                               {"alpha_pattern", {{"q_proj", 4}}},
                                                                               {"init_lora_weights", "pissa_niter_4"},
                                                                               {"init_lora_weights", "loftq"},
                                                                               {"trainable_token_indices", {1}},
                                                                               {"layer_replication", {{0, 4}, {2, 5}}},
                                                                               {"r", "8"},
                                                                               {"r", 2.5},
                                                                               {"lora_alpha", "16"},
                                                                               {"use_rslora", 1},
                                                                               {"r", 0},
                                                                               {"lora_alpha", -1},
                                                                               {"lora_dropout", 1},
                                                                               {"use_bdlora", true},
                                                                               {"velora_config", {{"x", 1}}},
                                                                               {"future", 1},
                                                                               {"init_lora_weights", 3}}) {
    EXPECT_THAT(ParseWith(member, value), StatusIs(absl::StatusCode::kInvalidArgument, member + ": ")) << value;
  }
  EXPECT_THAT(ParseWith("r", 5000),
              StatusIs(absl::StatusCode::kInvalidArgument, "r: 5000, must be between 1 and 4096"));
  for (const char* text : {"", "[]", "null", "{\"r\": 1, \"r\": 2}"}) {
    EXPECT_THAT(ParseAdapterConfig(text).status(), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace eps
