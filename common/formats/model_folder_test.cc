#include "common/formats/model_folder.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "common/model/hf_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ModelSpec SmallModel() {
  return BuildModel({.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 10}).value();
}

// A value that names its tensor and place, exact in every dtype.
float ValueAt(const TensorSpec& tensor, int64_t i) {
  return static_cast<float>((tensor.name.size() * 7 + static_cast<size_t>(i)) % 64) / 64;
}
absl::Status Fill(const TensorSpec& tensor, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueAt(tensor, static_cast<int64_t>(i));
  return absl::OkStatus();
}

TEST(ModelFolderTest, WhatIsWrittenIsReadBackInEveryDtype) {
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    TempDir dir;
    const std::string folder = dir.path() + "/out";
    ASSERT_OK(WriteModelFolder(folder, SmallModel(), dtype, Fill));
    auto opened = ModelFolder::Open(folder);
    ASSERT_OK(opened.status());
    EXPECT_EQ((*opened)->model().config.num_layers, 2);
    EXPECT_TRUE((*opened)->unused_tensors().empty());
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
    ASSERT_OK(WriteModelFolder(dir.path() + "/out", model, "BF16", Fill));
    auto opened = ModelFolder::Open(dir.path() + "/out");
    ASSERT_OK(opened.status());
    EXPECT_EQ((*opened)->model().config, model.config);
    EXPECT_TRUE((*opened)->unused_tensors().empty());
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

TEST(ModelFolderTest, AHeadThatConfigSaysIsTiedMustBe) {
  TempDir dir;
  // Written with a head of its own, then declared tied.
  ASSERT_OK(WriteModelFolder(dir.path() + "/out", SmallLlama(false), "F32", Fill));
  std::ofstream(dir.path() + "/out/config.json") << ModelConfigToJson(SmallLlama(true).config);
  EXPECT_THAT(ModelFolder::Open(dir.path() + "/out").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "lm_head.weight is not the token embedding"));
  // And the other way round: the table that config.json asks for is not there.
  ASSERT_OK(WriteModelFolder(dir.path() + "/tied", SmallLlama(true), "F32", Fill));
  std::ofstream(dir.path() + "/tied/config.json") << ModelConfigToJson(SmallLlama(false).config);
  EXPECT_THAT(ModelFolder::Open(dir.path() + "/tied").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "tensor lm_head.weight is missing"));
}

TEST(ModelFolderTest, AFolderThatIsNotEmptyIsNotWrittenTo) {
  TempDir dir;
  std::ofstream(dir.path() + "/kept") << "x";
  EXPECT_THAT(WriteModelFolder(dir.path(), SmallModel(), "F32", Fill),
              StatusIs(absl::StatusCode::kAlreadyExists, "not empty"));
}

TEST(ModelFolderTest, AReadThatFailsLeavesNothing) {
  TempDir dir;
  const std::string folder = dir.path() + "/out";
  const auto fail = [](const TensorSpec&, absl::Span<float>) { return absl::DataLossError("no"); };
  EXPECT_THAT(WriteModelFolder(folder, SmallModel(), "F32", fail), StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ModelFolderTest, AFolderBesideTheTargetIsNotTouched) {
  TempDir dir;
  std::filesystem::create_directory(dir.path() + "/out.tmp");
  std::ofstream(dir.path() + "/out.tmp/kept") << "x";
  ASSERT_OK(WriteModelFolder(dir.path() + "/out", SmallModel(), "F32", Fill));
  EXPECT_TRUE(std::filesystem::exists(dir.path() + "/out.tmp/kept"));
}

TEST(ModelFolderTest, WhatIsNoNumberStaysSoInEveryDtype) {
  const auto not_finite = [](const TensorSpec&, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = i % 2 == 0 ? std::bit_cast<float>(0x7FFFFFFFu) : std::numeric_limits<float>::infinity();
    }
    return absl::OkStatus();
  };
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    TempDir dir;
    ASSERT_OK(WriteModelFolder(dir.path() + "/out", SmallModel(), dtype, not_finite));
    ASSERT_OK_AND_ASSIGN(const auto opened, ModelFolder::Open(dir.path() + "/out"));
    const TensorSpec& tensor = opened->model().blobs.front().tensors.front();
    std::vector<float> values(tensor.num_elems());
    ASSERT_OK(opened->Read(tensor, absl::MakeSpan(values)));
    EXPECT_TRUE(std::isnan(values[0])) << dtype;
    EXPECT_TRUE(std::isinf(values[1])) << dtype;
  }
}

TEST(ModelFolderTest, AnUnknownDtypeIsNamed) {
  TempDir dir;
  EXPECT_THAT(WriteModelFolder(dir.path() + "/out", SmallModel(), "F64", Fill),
              StatusIs(absl::StatusCode::kInvalidArgument, "F64"));
}

// Writes the tensors of `model` under names made by `rename`, with `extra` ones on top.
void WriteFile(const std::string& folder, const ModelSpec& model, const std::string& strip,
               std::vector<SafetensorsEntry> extra, float extra_value) {
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
    }
    ASSERT_OK((*writer)->Write(
        i, 0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float))));
  }
  ASSERT_OK((*writer)->Finish());
  std::ofstream(folder + "/config.json") << ModelConfigToJson(model.config);
}

TEST(ModelFolderTest, NamesWithoutPrefixMasksAndStrangersAreTakenAsTheyShould) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "transformer.",
            {{.name = "h.0.attn.bias", .dtype = "F32", .shape = {1, 1, 4, 4}},
             {.name = "score.weight", .dtype = "F32", .shape = {2, 8}}},
            1);
  auto opened = ModelFolder::Open(dir.path());
  ASSERT_OK(opened.status());
  EXPECT_EQ((*opened)->unused_tensors(), std::vector<std::string>{"score.weight"});
}

TEST(ModelFolderTest, AHeadOfItsOwnIsRefused) {
  TempDir dir;
  WriteFile(dir.path(), SmallModel(), "", {{.name = "lm_head.weight", .dtype = "F32", .shape = {10, 8}}}, 9);
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
        {R"({"weight_map": []})", "no object weight_map"}}) {
    std::ofstream(dir.path() + "/model.safetensors.index.json") << text;
    EXPECT_THAT(ModelFolder::Open(dir.path()).status(), StatusIs(absl::StatusCode::kInvalidArgument, why));
  }
}

}  // namespace
}  // namespace eps
