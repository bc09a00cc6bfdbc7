#include "common/formats/model_folder.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/model_folder_writer.h"
#include "common/formats/safetensors.h"
#include "common/model/hf_config.h"
#include "common/numeric/bf16.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

// Whose message has both.
auto IsInvalid(const std::string& one, const std::string& other = "") {
  return testing::AllOf(StatusIs(absl::StatusCode::kInvalidArgument, one),
                        StatusIs(absl::StatusCode::kInvalidArgument, other));
}

ModelSpec SmallModel() {
  return BuildModel({.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 10}).value();
}

// A value that names its tensor and place, exact in every dtype.
float ValueAt(const TensorSpec& tensor, int64_t i) {
  return static_cast<float>((tensor.name.size() * 7 + static_cast<size_t>(i)) % 64) / 64;
}
absl::Status FillPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueAt(tensor, first_elem + static_cast<int64_t>(i));
  return absl::OkStatus();
}
absl::Status Fill(const TensorSpec& tensor, absl::Span<float> values) { return FillPart(tensor, 0, values); }

TEST(ModelFolderTest, WhatIsWrittenIsReadBackInEveryDtype) {
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    TempDir dir;
    const std::string folder = dir.path() + "/out";
    ASSERT_OK(WriteModelFolder(folder, SmallModel(), {.dtype = dtype}, FillPart));
    auto opened = ModelFolder::Open(folder);
    ASSERT_OK(opened.status());
    EXPECT_EQ((*opened)->model().config.num_layers, 2);
    for (const BlobSpec& blob : (*opened)->model().blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        std::vector<float> values(tensor.num_elems());
        ASSERT_OK((*opened)->Read(tensor, absl::MakeSpan(values)));
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], ValueAt(tensor, static_cast<int64_t>(i))) << tensor.name << " " << i;
        }
      }
    }
  }
}

ModelSpec SmallLlama(bool tied_head) {
  ModelConfig config = {.family = ModelFamily::kLlama, .num_layers = 2, .d_model = 12, .num_heads = 3};
  config.context = config.max_positions = 8;
  config.vocab = 17;
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.d_ff = 20;
  config.tied_head = tied_head;
  config.qkv_bias = true;
  return BuildModel(config).value();
}

TEST(ModelFolderTest, AModelOfTheLlamaFamilyIsReadBackWithItsOwnHeadOrWithout) {
  for (const bool tied : {false, true}) {
    TempDir dir;
    const ModelSpec model = SmallLlama(tied);
    ASSERT_OK(WriteModelFolder(dir.path() + "/out", model, {.dtype = "BF16"}, FillPart));
    auto opened = ModelFolder::Open(dir.path() + "/out");
    ASSERT_OK(opened.status());
    EXPECT_EQ((*opened)->model().config, model.config);
    for (const BlobSpec& blob : model.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        std::vector<float> values(tensor.num_elems());
        ASSERT_OK((*opened)->Read(tensor, absl::MakeSpan(values)));
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], ValueAt(tensor, static_cast<int64_t>(i))) << tensor.name << " " << i;
        }
      }
    }
  }
}

ModelSpec SmallBert(int64_t num_classes) {
  ModelConfig config = {.family = ModelFamily::kBert, .num_layers = 2, .d_model = 12, .num_heads = 3};
  config.context = config.max_positions = 8;
  config.vocab = 17;
  config.d_ff = 20;
  config.num_types = 2;
  config.num_classes = num_classes;
  return BuildModel(config).value();
}

TEST(ModelFolderTest, ABertIsReadBackWithEitherHead) {
  for (const int64_t num_classes : {0, 3}) {
    TempDir dir;
    const ModelSpec model = SmallBert(num_classes);
    ASSERT_OK(WriteModelFolder(dir.path() + "/out", model, {.dtype = "F32"}, FillPart));
    auto opened = ModelFolder::Open(dir.path() + "/out");
    ASSERT_OK(opened.status());
    EXPECT_EQ((*opened)->model().config, model.config);
    for (const BlobSpec& blob : model.blobs) {
      for (const TensorSpec& tensor : blob.tensors) EXPECT_FALSE((*opened)->is_new(tensor)) << tensor.name;
    }
  }
}

// Of `model`, those that are not in the folder's files.
std::set<std::string> NewTensors(const std::string& folder, const ModelSpec& model) {
  const auto opened = ModelFolder::Open(folder, model.config);
  EXPECT_OK(opened.status());
  std::set<std::string> created;
  if (!opened.ok()) return created;
  EXPECT_EQ((*opened)->model().config, model.config);
  for (const BlobSpec& blob : (*opened)->model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if ((*opened)->is_new(tensor)) created.insert(tensor.name);
    }
  }
  return created;
}

TEST(ModelFolderTest, AClassifierOfAModelThatIsNoneHasANewHead) {
  TempDir dir;
  ASSERT_OK(WriteModelFolder(dir.path() + "/out", SmallBert(0), {.dtype = "F32"}, FillPart));
  EXPECT_EQ(NewTensors(dir.path() + "/out", SmallBert(4)),
            (std::set<std::string>{"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight",
                                   "classifier.bias"}));
  // Of a folder that says it is a classifier nothing may be missing.
  std::ofstream(dir.path() + "/out/config.json") << ModelConfigToJson(SmallBert(3).config);
  EXPECT_THAT(ModelFolder::Open(dir.path() + "/out", SmallBert(3).config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "tensor bert.pooler.dense.weight is missing"));
}

TEST(ModelFolderTest, AClassifierOfOtherClassesHasANewOutputOverTheFoldersOwnPooler) {
  TempDir dir;
  const std::set<std::string> none, output = {"classifier.weight", "classifier.bias"};
  ASSERT_OK(WriteModelFolder(dir.path() + "/out", SmallBert(3), {.dtype = "F32"}, FillPart));
  EXPECT_EQ(NewTensors(dir.path() + "/out", SmallBert(3)), none);
  EXPECT_EQ(NewTensors(dir.path() + "/out", SmallBert(4)), output);
  ModelSpec named = SmallBert(3);
  named.config.class_names = {"no", "perhaps", "yes"};
  EXPECT_EQ(NewTensors(dir.path() + "/out", named), none) << "names of classes that had none";
  ASSERT_OK(WriteModelFolder(dir.path() + "/named", named, {.dtype = "F32"}, FillPart));
  EXPECT_EQ(NewTensors(dir.path() + "/named", named), none);
  named.config.class_names = {"good", "bad", "neither"};
  EXPECT_EQ(NewTensors(dir.path() + "/named", named), output);
}

TEST(ModelFolderTest, ABertModelBeginsAClassifierAndNothingElse) {
  TempDir dir;
  const std::string folder = dir.path() + "/out";
  ASSERT_OK(WriteModelFolder(folder, SmallBert(3), {.dtype = "F32"}, FillPart));
  std::string config = ModelConfigToJson(SmallBert(0).config);
  config.replace(config.find("BertForMaskedLM"), 15, "BertModel");
  std::ofstream(folder + "/config.json") << config;
  EXPECT_EQ(NewTensors(folder, SmallBert(3)), std::set<std::string>());
  EXPECT_THAT(ModelFolder::Open(folder).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "begins a classifier: give model.classes"));
}

TEST(ModelFolderTest, AHeadThatConfigSaysIsTiedMustBe) {
  TempDir dir;
  // Written with a head of its own, then declared tied.
  ASSERT_OK(WriteModelFolder(dir.path() + "/out", SmallLlama(false), {.dtype = "F32"}, FillPart));
  std::ofstream(dir.path() + "/out/config.json") << ModelConfigToJson(SmallLlama(true).config);
  EXPECT_THAT(ModelFolder::Open(dir.path() + "/out").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "is not the token embedding"));
  // And the other way round: the table that config.json asks for is not there.
  ASSERT_OK(WriteModelFolder(dir.path() + "/tied", SmallLlama(true), {.dtype = "F32"}, FillPart));
  std::ofstream(dir.path() + "/tied/config.json") << ModelConfigToJson(SmallLlama(false).config);
  EXPECT_THAT(ModelFolder::Open(dir.path() + "/tied").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "tensor lm_head.weight is missing"));
}

TEST(ModelFolderTest, AReadThatFailsLeavesNothing) {
  TempDir dir;
  const std::string folder = dir.path() + "/out";
  const auto fail = [](const TensorSpec&, int64_t, absl::Span<float>) { return absl::DataLossError("no"); };
  EXPECT_THAT(WriteModelFolder(folder, SmallModel(), {.dtype = "F32"}, fail),
              StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ModelFolderTest, AValueThatTheWireFormCannotHoldIsNamedWithItsFileAndByte) {
  TempDir dir;
  const ModelSpec model = SmallModel();
  ASSERT_OK(WriteModelFolder(dir.File("out"), model, {.dtype = "BF16"}, FillPart));
  ASSERT_OK_AND_ASSIGN(const auto folder, ModelFolder::Open(dir.File("out")));
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(dir.File("out/model.safetensors")));
  const TensorSpec& tensor = model.blobs.back().tensors.front();
  const auto check = [&](float value, Dtype wire) {
    return folder->CheckValues(tensor, /*first_elem=*/2, {0.5f, -1e-30f, value, 0}, wire);
  };
  const std::string where = absl::StrCat("out/model.safetensors: tensor ", tensor.name, ", element 4 at byte ",
                                         file->Find(tensor.name)->offset_bytes + 4 * 2, ": ");
  const float below_bf16 = std::bit_cast<float>(0x7F7F7FFFu), above_bf16 = std::bit_cast<float>(0x7F7F8000u);
  EXPECT_OK(check(-65519.996f, Dtype::kF16));
  EXPECT_THAT(check(65520, Dtype::kF16), IsInvalid(where + "65520, ", "set precision.wire: BF16 or FP32"));
  EXPECT_THAT(check(-7e4f, Dtype::kF16), IsInvalid(where + "-70000, is too large for precision.wire: FP16"));
  EXPECT_OK(check(below_bf16, Dtype::kBf16));
  EXPECT_EQ(ToBf16(below_bf16).bits, 0x7F7F);
  EXPECT_THAT(check(above_bf16, Dtype::kBf16), IsInvalid(where + "3.39", "set precision.wire: FP32"));
  EXPECT_EQ(ToBf16(above_bf16).bits, 0x7F80) << "infinity";
  EXPECT_OK(check(std::numeric_limits<float>::max(), Dtype::kF32));
  for (const float wrong : {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const Dtype wire : {Dtype::kF16, Dtype::kBf16, Dtype::kF32}) {
      EXPECT_THAT(check(wrong, wire), IsInvalid(where, ", must be finite"));
    }
  }
}

TEST(ModelFolderTest, AValueThatCannotBeComputedWithIsRefusedAsItIsRead) {
  TempDir dir;
  const ModelSpec model = SmallModel();
  const auto fill = [](const TensorSpec&, int64_t first, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<int64_t>(i) == 3 ? 1e5f : 1;
    return absl::OkStatus();
  };
  ASSERT_OK(WriteModelFolder(dir.File("out"), model, {}, fill));
  ASSERT_OK_AND_ASSIGN(const auto folder, ModelFolder::Open(dir.File("out")));
  const TensorSpec& tensor = model.blobs.back().tensors.front();
  std::vector<float> values(2);
  EXPECT_OK(folder->ReadChecked(tensor, 2, absl::MakeSpan(values)));
  EXPECT_EQ(values, (std::vector<float>{1, 1e5f}));
  EXPECT_OK(folder->ReadChecked(tensor, 1, absl::MakeSpan(values), Dtype::kF16));
  EXPECT_THAT(folder->ReadChecked(tensor, 2, absl::MakeSpan(values), Dtype::kF16),
              IsInvalid(tensor.name + ", element 3 at byte ", ": 100000, is too large"));
}

// Writes the tensors of `model` without `strip` in front of their names, with `extra` ones behind them: of
// `extra_value`, or as `fill_extra` says.
void WriteFile(const std::string& folder, const ModelSpec& model, const std::string& strip,
               std::vector<SafetensorsEntry> extra, float extra_value,
               const std::function<absl::Status(absl::Span<float>)>& fill_extra = nullptr) {
  std::vector<SafetensorsEntry> entries;
  std::vector<const TensorSpec*> tensors;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      entries.push_back({.name = tensor.name.substr(strip.size()), .dtype = "F32", .shape = tensor.shape});
      tensors.push_back(&tensor);
    }
  }
  for (const SafetensorsEntry& entry : extra) entries.push_back(entry);
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors", entries, {});
  ASSERT_OK(writer.status());
  for (size_t i = 0; i < entries.size(); ++i) {
    int64_t num_elems = 1;
    for (int64_t dim : entries[i].shape) num_elems *= dim;
    std::vector<float> values(num_elems, extra_value);
    if (i < tensors.size()) {
      ASSERT_OK(Fill(*tensors[i], absl::MakeSpan(values)));
    } else if (fill_extra) {
      ASSERT_OK(fill_extra(absl::MakeSpan(values)));
    }
    ASSERT_OK((*writer)->Write(
        i, 0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float))));
  }
  ASSERT_OK((*writer)->Finish());
  std::ofstream(folder + "/config.json") << ModelConfigToJson(model.config);
}

TEST(ModelFolderTest, NamesMayLackTheirPrefixAndMasksAreIgnored) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "transformer.",
            {{.name = "h.0.attn.bias", .dtype = "F32", .shape = {1, 1, 4, 4}},
             {.name = "h.1.attn.masked_bias", .dtype = "F32", .shape = {}}},
            1);
  EXPECT_OK(ModelFolder::Open(dir.path()).status());
}

TEST(ModelFolderTest, BuffersOfRotaryPositionsAreIgnored) {
  TempDir dir;
  WriteFile(dir.path(), SmallLlama(false), "",
            {{.name = "model.layers.1.self_attn.rotary_emb.inv_freq", .dtype = "F32", .shape = {3}},
             {.name = "model.rotary_emb.inv_freq", .dtype = "F32", .shape = {3}},
             {.name = "rotary_emb.inv_freq", .dtype = "F32", .shape = {3}}},
            1);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "rotary_emb.inv_freq at byte"));  // twice, by one name
  WriteFile(dir.path(), SmallLlama(false), "",
            {{.name = "model.layers.1.self_attn.rotary_emb.inv_freq", .dtype = "F32", .shape = {3}},
             {.name = "rotary_emb.inv_freq", .dtype = "F32", .shape = {3}}},
            1);
  EXPECT_OK(ModelFolder::Open(dir.path()).status());
}

TEST(ModelFolderTest, ATensorThatTheModelDoesNotHaveIsNamed) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "", {{.name = "score.weight", .dtype = "F32", .shape = {2, 8}}}, 1);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
              IsInvalid(dir.path() + "/model.safetensors: tensor score.weight at byte ", "is no part of the model"));
  WriteFile(dir.path(), SmallLlama(false), "",
            {{.name = "model.layers.0.mlp.up_proj.bias", .dtype = "F32", .shape = {20}},
             {.name = "model.layers.1.mlp.up_proj.bias", .dtype = "F32", .shape = {20}}},
            1);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
              IsInvalid("tensor model.layers.0.mlp.up_proj.bias", "and 1 more are"));
  // A layer beyond those of config.json.
  WriteFile(dir.path(), SmallModel(), "", {{.name = "h.2.ln_1.weight", .dtype = "F32", .shape = {8}}}, 1);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "tensor h.2.ln_1.weight"));
}

TEST(ModelFolderTest, AHeadOfItsOwnIsRefused) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "", {{.name = "lm_head.weight", .dtype = "F32", .shape = {10, 8}}}, 9);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
              IsInvalid("tensor lm_head.weight at byte ", "is not the token embedding"));
}

TEST(ModelFolderTest, AHeadOfTheTokenEmbeddingsBytesIsTaken) {
  TempDir dir;
  const ModelSpec model = SmallLlama(true);
  // Fill gives a tensor of this length of name the same values: the head is written as what it is tied to.
  WriteFile(dir.path(), model, "", {{.name = "lm_head.weight", .dtype = "F32", .shape = {17, 12}}}, 0,
            [&](absl::Span<float> values) { return Fill(model.blobs[0].tensors[0], values); });
  EXPECT_OK(ModelFolder::Open(dir.path()).status());
  // The same values in another shape are another tensor.
  WriteFile(dir.path(), model, "", {{.name = "lm_head.weight", .dtype = "F32", .shape = {12, 17}}}, 0,
            [&](absl::Span<float> values) { return Fill(model.blobs[0].tensors[0], values); });
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(), StatusIs(absl::StatusCode::kInvalidArgument, "lm_head.weight"));
}

TEST(ModelFolderTest, AMissingTensorOrAnotherShapeIsNamed) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "", {}, 0);
  ModelSpec deeper = BuildModel({.num_layers = 3, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 10}).value();
  std::ofstream(dir.path() + "/config.json") << ModelConfigToJson(deeper.config);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "transformer.h.2.ln_1.weight"));
  ModelSpec longer = BuildModel({.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 6, .vocab = 10}).value();
  std::ofstream(dir.path() + "/config.json") << ModelConfigToJson(longer.config);
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(), StatusIs(absl::StatusCode::kInvalidArgument, "(4, 8)"));
}

// One F32 tensor per name, filled as the model's of that name is.
void WriteShard(const std::string& path, const ModelSpec& model, const std::vector<std::string>& names) {
  std::vector<SafetensorsEntry> entries;
  std::vector<const TensorSpec*> tensors;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (std::find(names.begin(), names.end(), tensor.name) == names.end()) continue;
      entries.push_back({.name = tensor.name, .dtype = "F32", .shape = tensor.shape});
      tensors.push_back(&tensor);
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries, {}));
  for (size_t i = 0; i < entries.size(); ++i) {
    std::vector<float> values(tensors[i]->num_elems());
    ASSERT_OK(Fill(*tensors[i], absl::MakeSpan(values)));
    ASSERT_OK(writer->Write(
        i, 0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float))));
  }
  ASSERT_OK(writer->Finish());
}

// A folder of two shards, whose index a test changes.
class ShardsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const BlobSpec& blob : model_.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        const bool first = tensor.name.find("h.1.") == std::string::npos;
        (first ? first_ : second_).push_back(tensor.name);
        index_["weight_map"][tensor.name] = first ? "a.safetensors" : "b.safetensors";
      }
    }
    WriteShard(dir_.File("a.safetensors"), model_, first_);
    WriteShard(dir_.File("b.safetensors"), model_, second_);
    std::ofstream(dir_.File("config.json")) << ModelConfigToJson(model_.config);
  }

  absl::Status Open() {
    std::ofstream(dir_.File("model.safetensors.index.json")) << index_.dump();
    return ModelFolder::Open(dir_.path()).status();
  }

  const ModelSpec model_ = SmallModel();
  const std::string moved_ = "transformer.h.1.ln_1.weight";
  TempDir dir_;
  std::vector<std::string> first_, second_;
  nlohmann::json index_;
};

TEST_F(ShardsTest, AreOneModel) { EXPECT_OK(Open()); }

TEST_F(ShardsTest, AFileThatIsNotThereIsNamed) {
  std::filesystem::remove(dir_.File("b.safetensors"));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound, "index.json: cannot open "));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound, "b.safetensors"));
}

TEST_F(ShardsTest, ATensorInTwoShardsIsNamedWithBoth) {
  first_.push_back(moved_);
  WriteShard(dir_.File("a.safetensors"), model_, first_);
  EXPECT_THAT(Open(), IsInvalid("b.safetensors: tensor " + moved_, "a.safetensors"));
}

TEST_F(ShardsTest, ATensorThatTheIndexPlacesElsewhereIsNamed) {
  index_["weight_map"][moved_] = "a.safetensors";
  EXPECT_THAT(Open(), IsInvalid("b.safetensors: tensor " + moved_, "places it in a.safetensors"));
}

TEST_F(ShardsTest, ATensorThatTheIndexDoesNotListIsNamed) {
  index_["weight_map"].erase(moved_);
  EXPECT_THAT(Open(), IsInvalid("b.safetensors: tensor " + moved_, "does not list it"));
}

TEST_F(ShardsTest, ATensorThatNoShardHasIsNamed) {
  second_.erase(std::find(second_.begin(), second_.end(), moved_));
  WriteShard(dir_.File("b.safetensors"), model_, second_);
  EXPECT_THAT(Open(), IsInvalid("index.json: places tensor " + moved_ + " in b.safetensors"));
  index_["weight_map"].erase(moved_);
  EXPECT_THAT(Open(), IsInvalid("tensor " + moved_ + " is missing"));
}

TEST_F(ShardsTest, ATiedHeadThatOnlyTheIndexHasIsNothing) {
  index_["weight_map"]["lm_head.weight"] = "a.safetensors";
  EXPECT_OK(Open());
}

TEST_F(ShardsTest, AWholeFileBesideThemIsRefused) {
  WriteFile(dir_.path(), model_, "", {}, 0);
  EXPECT_THAT(Open(), IsInvalid("index.json: names shards", dir_.path() + "/model.safetensors is there as well"));
}

TEST(ModelFolderTest, APickleIsNamedWholeOrInShards) {
  for (const std::string name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    TempDir dir;
    std::ofstream(dir.path() + "/config.json") << ModelConfigToJson(SmallModel().config);
    std::ofstream(dir.path() + "/" + name) << "x";
    EXPECT_THAT(ModelFolder::Open(dir.path()).status(),
                StatusIs(absl::StatusCode::kNotFound, name + " is not read: save the model as safetensors"));
  }
}

TEST(ModelFolderTest, AnIndexThatLeadsOutOfTheFolderIsRefused) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "", {}, 0);
  std::ofstream(dir.path() + "/model.safetensors.index.json") << R"({"weight_map": {"wte.weight": "../x"}})";
  EXPECT_THAT(ModelFolder::Open(dir.path()).status(), StatusIs(absl::StatusCode::kInvalidArgument, "wte.weight"));
}

TEST(ModelFolderTest, AnIndexThatIsNoShallowJsonObjectIsRefused) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "", {}, 0);
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  for (const auto& [text, why] :
       {std::pair<std::string, std::string>{"{\"weight_map\": {\"wte.weight\": " + nested + "}}", "nested too deeply"},
        {"{", "not valid JSON"},
        {"[]", "no object weight_map"},
        {R"({"weight_map": []})", "no object weight_map"},
        {R"({"weight_map": {}})", "names no tensor"},
        {R"({"weight_map": {"wte.weight": "a", "wpe.weight": "a", "wte.weight": "b"}})",
         "index.json: weight_map.wte.weight: given twice"},
        {R"({"weight_map": {"wte.weight": "a"}, "weight_map": {"wte.weight": "b"}})", "weight_map: given twice"}}) {
    std::ofstream(dir.path() + "/model.safetensors.index.json") << text;
    EXPECT_THAT(ModelFolder::Open(dir.path()).status(), StatusIs(absl::StatusCode::kInvalidArgument, why));
  }
}

// ---- Writing in shards

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(ShardWriterTest, ShardsAreReadAsTheWholeFileIsAndNamedAsTheIndexSays) {
  const ModelSpec model = SmallLlama(false);
  TempDir dir;
  // 17 * 12 elements are the largest tensor, 408 bytes in 16 bits.
  ASSERT_OK(WriteModelFolder(dir.File("out"), model, {.dtype = "BF16", .max_shard_bytes = 1000}, FillPart));
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadAll(dir.File("out/model.safetensors.index.json")));
  const auto index = nlohmann::json::parse(text);
  EXPECT_EQ(index["metadata"]["total_size"], 2 * model.num_parameters());
  std::set<std::string> files, listed;
  for (const auto& entry : std::filesystem::directory_iterator(dir.File("out"))) files.insert(entry.path().filename());
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    listed.insert(file.get<std::string>());
    ASSERT_OK_AND_ASSIGN(const auto shard, SafetensorsReader::Open(dir.File("out/" + file.get<std::string>())));
    EXPECT_NE(shard->Find(tensor), nullptr) << tensor;
  }
  const size_t num_shards = listed.size();
  EXPECT_GE(num_shards, 3u);
  for (size_t i = 1; i <= num_shards; ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i, num_shards);
    EXPECT_TRUE(listed.contains(name)) << name;
    ASSERT_OK_AND_ASSIGN(const auto shard, SafetensorsReader::Open(dir.File(std::string("out/") + name)));
    int64_t num_bytes = 0;
    for (const SafetensorsEntry& entry : shard->entries()) num_bytes += entry.num_bytes;
    EXPECT_LE(num_bytes, 1000);
  }
  listed.insert({"config.json", "model.safetensors.index.json"});
  EXPECT_EQ(files, listed);

  ASSERT_OK_AND_ASSIGN(const auto opened, ModelFolder::Open(dir.File("out")));
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      std::vector<float> values(tensor.num_elems()), wanted(values.size());
      ASSERT_OK(opened->Read(tensor, absl::MakeSpan(values)));
      ASSERT_OK(Fill(tensor, absl::MakeSpan(wanted)));
      EXPECT_EQ(values, wanted) << tensor.name;
    }
  }
}

TEST(ShardWriterTest, ATensorLargerThanAShardHasAFileOfItsOwn) {
  TempDir dir;
  const ModelSpec model = SmallModel();
  size_t num_tensors = 0;
  for (const BlobSpec& blob : model.blobs) num_tensors += blob.tensors.size();
  ASSERT_OK(WriteModelFolder(dir.File("out"), model, {.max_shard_bytes = 1}, FillPart));
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.File("out"))) num_files += entry.is_regular_file();
  EXPECT_EQ(num_files, num_tensors + 2);
  EXPECT_OK(ModelFolder::Open(dir.File("out")).status());
}

TEST(ShardWriterTest, AModelOfExactlyAShardIsOneFile) {
  TempDir dir;
  const ModelSpec model = SmallModel();
  const int64_t num_bytes = 4 * model.num_parameters();
  ASSERT_OK(WriteModelFolder(dir.File("whole"), model, {.max_shard_bytes = num_bytes}, FillPart));
  EXPECT_TRUE(std::filesystem::exists(dir.File("whole/model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("whole/model.safetensors.index.json")));
  ASSERT_OK(WriteModelFolder(dir.File("cut"), model, {.max_shard_bytes = num_bytes - 1}, FillPart));
  EXPECT_TRUE(std::filesystem::exists(dir.File("cut/model-00002-of-00002.safetensors")));
}

TEST(ShardWriterTest, AReadThatFailsInTheLastShardLeavesNothing) {
  TempDir dir;
  const auto fail = [](const TensorSpec& tensor, int64_t, absl::Span<float>) {
    return tensor.name == "transformer.ln_f.bias" ? absl::DataLossError("no") : absl::OkStatus();
  };
  EXPECT_THAT(WriteModelFolder(dir.File("out"), SmallModel(), {.max_shard_bytes = 100}, fail),
              StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ShardWriterTest, AnUnknownDtypeIsNamed) {
  TempDir dir;
  EXPECT_THAT(WriteModelFolder(dir.File("out"), SmallModel(), {.dtype = "F64"}, FillPart), IsInvalid("F64"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ShardWriterTest, ShardsOfNoBytesAreRefused) {
  TempDir dir;
  EXPECT_THAT(WriteModelFolder(dir.File("out"), SmallModel(), {.max_shard_bytes = 0}, FillPart), IsInvalid("0 bytes"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// Every finite number there is.
TEST(ShardWriterTest, AFolderCopiedInItsOwnDtypeIsTheSameBytes) {
  ModelConfig config = {.num_layers = 1, .d_model = 64, .num_heads = 2, .context = 4, .vocab = 1024};
  const ModelSpec model = BuildModel(config).value();
  for (const std::string dtype : {"F16", "BF16"}) {
    TempDir dir;
    ASSERT_OK(WriteModelFolder(dir.File("from"), model, {.dtype = dtype}, FillPart));
    std::string bytes = ReadAll(dir.File("from/model.safetensors")).value();
    for (size_t i = 0; i < 65536; ++i) {  // the token table, which is first
      const uint16_t infinity = dtype == "F16" ? 0x7C00u : 0x7F80u;
      const auto half = static_cast<uint16_t>((i & infinity) == infinity ? 0 : i);
      std::memcpy(&bytes[bytes.size() - 2 * model.num_parameters() + 2 * i], &half, 2);
    }
    std::ofstream(dir.File("from/model.safetensors"), std::ios::binary) << bytes;
    ASSERT_OK_AND_ASSIGN(const auto from, ModelFolder::Open(dir.File("from")));
    ASSERT_OK(WriteModelFolder(dir.File("to"), from->model(), {.dtype = dtype},
                               [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                 return from->ReadPart(tensor, first, values);
                               }));
    EXPECT_TRUE(ReadAll(dir.File("to/model.safetensors")).value() == bytes) << dtype;
  }
}

// ---- what lies beside the tensors ----

TEST(ModelFolderFilesTest, AreWrittenAndReadBackAndOthersAreNotLookedAt) {
  TempDir dir;
  const ModelFiles files = {{"tokenizer.json", "{}"}, {"generation_config.json", "1"}, {"chat_template.jinja", ""}};
  ASSERT_OK(WriteModelFolder(dir.File("out"), SmallModel(), {.files = files}, FillPart));
  std::ofstream(dir.File("out/README.md")) << "text";
  ModelFiles want = files;
  want["config.json"] = ModelConfigToJson(SmallModel().config);
  EXPECT_THAT(ReadModelFiles(dir.File("out")), IsOkAndHolds(want));
  EXPECT_TRUE(HasTokenizer(want));
  want.erase("tokenizer.json");
  EXPECT_FALSE(HasTokenizer(want));
}

TEST(ModelFolderFilesTest, AFolderThatIsNotThereHasNoneAndWhatIsNoFileIsNamed) {
  TempDir dir;
  EXPECT_THAT(ReadModelFiles(dir.File("none")), IsOkAndHolds(ModelFiles()));
  std::filesystem::create_directories(dir.File("tokenizer.json"));
  EXPECT_FALSE(ReadModelFiles(dir.path()).ok());
}

TEST(ModelFolderFilesTest, WhoDoesWithoutIsToldWhatCannotBeRead) {
  TempDir dir;
  std::filesystem::create_directories(dir.File("tokenizer.json"));
  std::ofstream(dir.File("generation_config.json")) << "1";
  std::map<std::string, absl::Status> left_out;
  EXPECT_EQ(ReadModelFiles(dir.path(), left_out), (ModelFiles{{"generation_config.json", "1"}}));
  ASSERT_EQ(left_out.size(), 1);
  EXPECT_THAT(left_out["tokenizer.json"], StatusIs(absl::StatusCode::kFailedPrecondition, "tokenizer.json"));
}

TEST(ModelFolderFilesTest, TheConfigIsTheSourcesWithTheTensorsType) {
  TempDir dir;
  nlohmann::json source = nlohmann::json::parse(ModelConfigToJson(SmallModel().config));
  source["unknown"] = "kept";
  ASSERT_OK(WriteModelFolder(dir.File("out"), SmallModel(), {.dtype = "BF16", .config = {.source = source.dump()}},
                             FillPart));
  ASSERT_OK_AND_ASSIGN(const ModelFiles files, ReadModelFiles(dir.File("out")));
  source["torch_dtype"] = "bfloat16";
  EXPECT_EQ(nlohmann::json::parse(files.at("config.json")), source);
}

TEST(ModelFolderFilesTest, ASourceOfAnotherModelIsRefusedBeforeATensorIsWritten) {
  TempDir dir;
  const auto fail = [](const TensorSpec&, int64_t, absl::Span<float>) { return absl::InternalError("asked for"); };
  EXPECT_THAT(WriteModelFolder(dir.File("out"), SmallModel(),
                               {.config = {.source = ModelConfigToJson(SmallLlama(true).config)}}, fail),
              IsInvalid("model_type: \"qwen2\""));
  EXPECT_FALSE(std::filesystem::exists(dir.File("out")));
}

}  // namespace
}  // namespace eps
