#include "cli/checkpoint_folder.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

void Write(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << content;
}

std::string Digest(const std::string& content) {
  return Sha256Hex({reinterpret_cast<const std::byte*>(content.data()), content.size()});
}

TEST(CheckpointFolderTest, AStepFolderItsLatestAndTheRunAllMeanTheSame) {
  TempDir dir;
  Write(dir.File("checkpoints/step-00000005/config.json"), "{}");
  Write(dir.File("checkpoints/latest"), "step-00000005\n");
  for (const char* path : {"checkpoints/step-00000005", "checkpoints/latest", "checkpoints", ""}) {
    auto found = FindCheckpoint(dir.File(path));
    ASSERT_OK(found.status());
    EXPECT_TRUE(std::filesystem::equivalent(*found, dir.File("checkpoints/step-00000005"))) << path;
  }
}

TEST(CheckpointFolderTest, WhatIsNotThereIsNamed) {
  TempDir dir;
  EXPECT_THAT(FindCheckpoint(dir.File("nowhere")), StatusIs(absl::StatusCode::kNotFound, "nowhere"));
  EXPECT_THAT(FindCheckpoint(dir.path()), StatusIs(absl::StatusCode::kNotFound, "checkpoints/latest"));
}

TEST(CheckpointFolderTest, LatestMustNotLeadElsewhere) {
  TempDir dir;
  Write(dir.File("latest"), "../../etc");
  EXPECT_THAT(FindCheckpoint(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument, "latest"));
}

TEST(CheckpointFolderTest, EveryFileIsComparedWithTheManifest) {
  TempDir dir;
  const std::string content = "weights";
  Write(dir.File("model.safetensors"), content);
  Write(dir.File("manifest.json"), absl::StrCat(R"({"files": {"model.safetensors": {"bytes": )", content.size(),
                                                R"(, "sha256": ")", Digest(content), R"("}}})"));
  EXPECT_OK(VerifyCheckpoint(dir.path()));
  Write(dir.File("model.safetensors"), "weighty");
  EXPECT_THAT(VerifyCheckpoint(dir.path()), StatusIs(absl::StatusCode::kDataLoss, "model.safetensors is damaged"));
  Write(dir.File("model.safetensors"), "weight");
  EXPECT_THAT(VerifyCheckpoint(dir.path()), StatusIs(absl::StatusCode::kDataLoss, "has 6 bytes"));
  std::filesystem::remove(dir.File("model.safetensors"));
  EXPECT_THAT(VerifyCheckpoint(dir.path()), StatusIs(absl::StatusCode::kDataLoss, "missing"));
}

TEST(CheckpointFolderTest, AManifestThatIsNoneIsNamed) {
  for (const char* text : {"", "[]", "{}", R"({"files": []})", R"({"files": {"a": {}}})",
                           R"({"files": {"../a": {"bytes": 1, "sha256": ""}}})"}) {
    TempDir dir;
    Write(dir.File("manifest.json"), text);
    EXPECT_THAT(VerifyCheckpoint(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument, "manifest.json")) << text;
  }
}

}  // namespace
}  // namespace eps::cli
