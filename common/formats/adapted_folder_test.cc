#include "common/formats/adapted_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/adapter_folder.h"
#include "common/formats/adapter_parts.h"
#include "common/formats/adapter_testing.h"
#include "common/formats/model_folder_writer.h"
#include "common/formats/shard_index.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

absl::Status Count(const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.5f * static_cast<float>(first + static_cast<int64_t>(i)) + static_cast<float>(tensor.name.size());
  }
  return absl::OkStatus();
}

class AdaptedFolderTest : public testing::Test {
 protected:
  void WriteBase(const ModelConfig& config, const ModelFolderForm& form) {
    ASSERT_OK(WriteModelFolder(base_, BuildModel(config).value(), form, Count));
  }
  void WriteAdapter(const ModelConfig& config, const ReadTensorPart& read) {
    const ModelSpec model = BuildModel(config).value();
    ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, config));
    ASSERT_OK(WriteAdapterFolder(adapter_, config, {}, parts, read));
  }
  absl::StatusOr<int64_t> Write() const {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(base_));
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AdapterReader> adapter,
                         AdapterReader::Open(adapter_, base->model().config));
    EPS_ASSIGN_OR_RETURN(const ModelFiles files, ReadModelFiles(base_));
    return WriteAdaptedFolder(out_, *base, *adapter, files);
  }

  TempDir dir_;
  const std::string base_ = dir_.File("base"), adapter_ = dir_.File("peft"), out_ = dir_.File("out");
};

TEST_F(AdaptedFolderTest, ItIsTheBaseInItsOwnFilesWithTheAdaptersBeside) {
  const ModelConfig adapted = ConfigWithAdapters(ModelFamily::kLlama, {"q_proj"});
  ModelConfig config = adapted;
  config.lora = {};
  WriteBase(config, {.dtype = "BF16", .max_shard_bytes = 4000, .files = {{"tokenizer.json", "{}"}}});
  WriteAdapter(adapted, Count);
  EXPECT_THAT(Write(), IsOkAndHolds(0));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(base_));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> out, ModelFolder::Open(out_));
  EXPECT_EQ(out->model().config, adapted);
  int shards = 0;
  for (const auto& [tensor, file] : base->Index()) {
    ++shards;
    EXPECT_TRUE(std::filesystem::equivalent(base_ + "/" + file, out_ + "/" + file)) << file;
    EXPECT_EQ(out->Index().at(tensor), file);
  }
  EXPECT_GT(shards, 2);
  EXPECT_THAT(ReadFile(out_ + "/tokenizer.json"), IsOkAndHolds("{}"));
  for (const BlobSpec& blob : out->model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      std::vector<float> wanted(static_cast<size_t>(tensor.num_elems())), found = wanted;
      ASSERT_OK(tensor.lora == LoraPart::kNone ? base->Read(tensor, absl::MakeSpan(wanted))
                                               : Count(tensor, 0, absl::MakeSpan(wanted)));
      ASSERT_OK(out->Read(tensor, absl::MakeSpan(found)));
      EXPECT_EQ(found, wanted) << tensor.name;
    }
  }
}

TEST_F(AdaptedFolderTest, WhatTheAdapterHasWholeIsLeftOutOfTheBasesFileAlone) {
  const ModelConfig adapted = ClassifierWithAdapters({"query"});
  for (const int64_t classes : {0, 3}) {  // a model of masked tokens has no classifier to leave out
    ModelConfig config = adapted;
    config.lora = {};
    config.num_classes = classes;
    WriteBase(config, {.max_shard_bytes = 4000});
    const ModelSpec model = BuildModel(adapted).value();
    ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, adapted));
    ASSERT_OK(
        WriteAdapterFolder(adapter_, adapted, {}, parts, [](const TensorSpec&, int64_t, absl::Span<float> values) {
          for (float& value : values) value = -1;
          return absl::OkStatus();
        }));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(base_, adapted));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> adapter, AdapterReader::Open(adapter_, config));
    ASSERT_OK_AND_ASSIGN(const ModelFiles files, ReadModelFiles(base_));
    const absl::StatusOr<int64_t> written = WriteAdaptedFolder(out_, *base, *adapter, files);
    if (classes == 0) {  // whose pooler nobody has
      EXPECT_THAT(written, StatusIs(absl::StatusCode::kInvalidArgument,
                                    " is neither there nor in the adapter"));
    } else {
      EXPECT_THAT(written, IsOkAndHolds(testing::Gt(0)));
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> out, ModelFolder::Open(out_));
      EXPECT_EQ(out->model().config, adapted);
      for (const BlobSpec& blob : out->model().blobs) {
        for (const TensorSpec& tensor : blob.tensors) {
          std::vector<float> wanted(static_cast<size_t>(tensor.num_elems()), -1), found = wanted;
          if (!adapter->has(tensor)) {
            ASSERT_OK(base->Read(tensor, absl::MakeSpan(wanted)));
          }
          ASSERT_OK(out->Read(tensor, absl::MakeSpan(found)));
          EXPECT_EQ(found, wanted) << tensor.name;
        }
      }
    }
    for (const std::string& folder : {base_, adapter_, out_}) std::filesystem::remove_all(folder);
  }
}

TEST_F(AdaptedFolderTest, AFolderOfLinksInOneFileIsFollowed) {
  const ModelConfig adapted = ConfigWithAdapters(ModelFamily::kGpt2);
  ModelConfig config = adapted;
  config.lora = {};
  WriteBase(config, {});
  WriteAdapter(adapted, Count);
  std::filesystem::rename(base_ + "/model.safetensors", dir_.File("blob"));
  std::filesystem::create_symlink("../blob", base_ + "/model.safetensors");
  ASSERT_OK(Write());
  EXPECT_FALSE(std::filesystem::is_symlink(out_ + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::equivalent(out_ + "/model.safetensors", dir_.File("blob")));
  EXPECT_OK(ModelFolder::Open(out_));
}

TEST_F(AdaptedFolderTest, AnotherUsersFileIsCopied) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const ModelConfig adapted = ConfigWithAdapters(ModelFamily::kGpt2);
  ModelConfig config = adapted;
  config.lora = {};
  WriteBase(config, {});
  WriteAdapter(adapted, Count);
  const std::string file = base_ + "/model.safetensors", copy = out_ + "/model.safetensors";
  ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
  ASSERT_EQ(chmod(file.c_str(), 04640), 0);
  EXPECT_THAT(Write(), IsOkAndHolds(static_cast<int64_t>(std::filesystem::file_size(file))));
  EXPECT_FALSE(std::filesystem::equivalent(file, copy));
  EXPECT_EQ(ReadFile(file).value(), ReadFile(copy).value());
  struct stat found;
  ASSERT_EQ(stat(copy.c_str(), &found), 0);
  EXPECT_EQ(found.st_uid, 0u);
  EXPECT_EQ(found.st_mode & 04000u, 0u);
}

TEST_F(AdaptedFolderTest, WhatCannotBeIsNamedAndNothingIsLeft) {
  const ModelConfig adapted = ConfigWithAdapters(ModelFamily::kGpt2);
  ModelConfig config = adapted;
  config.lora = {};
  WriteBase(config, {});
  WriteAdapter(adapted, Count);
  // Behind what checks a value as it is written.
  const std::string path = adapter_ + "/adapter_model.safetensors";
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(path));
  const float infinity = std::numeric_limits<float>::infinity();
  bytes.replace(bytes.size() - 4, 4, reinterpret_cast<const char*>(&infinity), 4);
  ASSERT_OK(WriteFileAtomically(path, bytes));
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kInvalidArgument, ".lora_B.weight"));
  EXPECT_FALSE(std::filesystem::exists(out_));
  std::filesystem::rename(base_ + "/model.safetensors", base_ + "/adapters.safetensors");
  const ModelSpec model = BuildModel(config).value();
  ShardIndex index;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) index.emplace(tensor.name, "adapters.safetensors");
  }
  ASSERT_OK(WriteFileAtomically(base_ + "/model.safetensors.index.json", ShardIndexToJson(index, 1)));
  EXPECT_THAT(Write(), StatusIs(absl::StatusCode::kInvalidArgument, base_ + "/adapters.safetensors: is there"));
}

}  // namespace
}  // namespace eps
