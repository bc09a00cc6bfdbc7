#include "common/formats/adapted_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/adapter_folder.h"
#include "common/formats/adapter_parts.h"
#include "common/formats/adapter_reader.h"
#include "common/formats/adapter_testing.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/model_folder_writer.h"
#include "common/formats/shard_index.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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
    EPS_ASSIGN_OR_RETURN(const std::string config, ReadFile(base_ + "/config.json"));
    EPS_ASSIGN_OR_RETURN(const ModelConfig base_config, ModelConfigFromJson(config));
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AdapterReader> adapter, AdapterReader::Open(adapter_, base_config));
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(base_, adapter->model().config));
    EPS_ASSIGN_OR_RETURN(const ModelFiles files, ReadModelFiles(base_));
    return WriteAdaptedFolder(out_, *base, *adapter, files);
  }

  void WriteClassifier(const ModelConfig& adapted, const std::optional<ModelConfig>& base);
  // total_size is of what the files have.
  void ExpectWholeIndex(const ModelFolder& out) const {
    int64_t num_bytes = 0;
    for (const ModelFolder::StoredTensor& stored : out.StoredTensors()) num_bytes += stored.num_bytes;
    const auto index = nlohmann::json::parse(ReadFile(out_ + "/model.safetensors.index.json").value());
    EXPECT_EQ(index["metadata"]["total_size"], num_bytes);
  }

  TempDir dir_;
  const std::string base_ = dir_.File("base"), adapter_ = dir_.File("peft"), out_ = dir_.File("out");
};

TEST_F(AdaptedFolderTest, ItIsTheBaseInItsOwnFilesWithTheAdaptersBeside) {
  const ModelConfig adapted = ConfigWithAdapters(ModelFamily::kLlama, {"q_proj"});
  const ModelConfig config = WithoutAdapters(adapted);
  WriteBase(config, {.dtype = "BF16", .max_shard_bytes = 4000, .files = {{"tokenizer.json", "{}"}}});
  WriteAdapter(adapted, Count);
  EXPECT_THAT(Write(), IsOkAndHolds(0));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(base_));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> out, ModelFolder::Open(out_));
  EXPECT_EQ(out->model().config, adapted);
  std::set<std::string> shards;
  for (const ModelFolder::StoredTensor& stored : base->StoredTensors()) shards.insert(stored.file);
  EXPECT_GT(shards.size(), 2u);
  for (const std::string& file : shards) {
    EXPECT_TRUE(std::filesystem::equivalent(base_ + "/" + file, out_ + "/" + file)) << file;
  }
  ExpectWholeIndex(*out);
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

// A classifier's adapter, every value -1, with what PEFT would have whole beside `base`.
void AdaptedFolderTest::WriteClassifier(const ModelConfig& adapted, const std::optional<ModelConfig>& base) {
  const ModelSpec model = BuildModel(adapted).value();
  ASSERT_OK_AND_ASSIGN(const AdapterParts parts, PartsOfAdapter(model, base));
  ASSERT_OK(WriteAdapterFolder(adapter_, adapted, {}, parts, [](const TensorSpec&, int64_t, absl::Span<float> values) {
    for (float& value : values) value = -1;
    return absl::OkStatus();
  }));
}

TEST_F(AdaptedFolderTest, WhatTheAdapterHasWholeIsLeftOutOfTheBasesFileAlone) {
  const ModelConfig adapted = ClassifierWithAdapters({"query"});
  WriteBase(WithoutAdapters(adapted), {.max_shard_bytes = 4000});
  WriteClassifier(adapted, adapted);
  ASSERT_OK_AND_ASSIGN(const int64_t copied_bytes, Write());
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(base_));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> out, ModelFolder::Open(out_));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AdapterReader> adapter,
                       AdapterReader::Open(adapter_, base->model().config));
  EXPECT_EQ(out->model().config, adapted);
  std::set<std::string> changed;
  std::map<std::string, int64_t> bytes_left;
  for (const ModelFolder::StoredTensor& stored : base->StoredTensors()) {
    const bool is_whole = absl::StartsWith(stored.name, "classifier.");
    if (is_whole) changed.insert(stored.file);
    bytes_left[stored.file] += is_whole ? 0 : stored.num_bytes;
  }
  int64_t expected_bytes = 0;
  for (const auto& [file, num_bytes] : bytes_left) {
    std::error_code ignored;
    EXPECT_EQ(std::filesystem::equivalent(base_ + "/" + file, out_ + "/" + file, ignored), !changed.contains(file))
        << file;
    if (changed.contains(file)) expected_bytes += num_bytes;
  }
  EXPECT_EQ(copied_bytes, expected_bytes);
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
  ExpectWholeIndex(*out);
}

TEST_F(AdaptedFolderTest, AModelOfMaskedTokensBecomesAClassifierByAnAdapterThatHasTheHead) {
  const ModelConfig adapted = ClassifierWithAdapters({"query"});
  ModelConfig config = WithoutAdapters(adapted);
  config.num_classes = 0;
  WriteBase(config, {});
  WriteClassifier(adapted, std::nullopt);
  EXPECT_THAT(Write(), IsOkAndHolds(0));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelFolder> out, ModelFolder::Open(out_));
  EXPECT_EQ(out->model().config, adapted);
  std::filesystem::remove_all(out_);
  std::filesystem::remove_all(adapter_);
  WriteClassifier(adapted, adapted);  // whose pooler nobody has
  EXPECT_THAT(Write().status(), StatusIs(absl::StatusCode::kInvalidArgument, base_ + ": tensor bert.pooler.dense."));
  EXPECT_THAT(Write().status(), StatusIs(absl::StatusCode::kInvalidArgument, " is neither there nor in the adapter"));
}

TEST_F(AdaptedFolderTest, AFolderOfLinksInOneFileIsFollowed) {
  const ModelConfig adapted = ConfigWithAdapters(ModelFamily::kGpt2);
  const ModelConfig config = WithoutAdapters(adapted);
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
  const ModelConfig config = WithoutAdapters(adapted);
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
  const ModelConfig config = WithoutAdapters(adapted);
  WriteBase(config, {});
  WriteAdapter(adapted, Count);
  // In the file itself, as the writer refuses such a value.
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
