#include "common/checkpoint/checkpoint_files.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/testing.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::ordered_json;

// One of a run's files, with its folder.
void Write(const std::string& path, const std::string& content) {
  ASSERT_OK(MakeDirs(DirName(path)));
  ASSERT_OK(WriteFileAtomically(path, content));
}

// A checkpoint's four files, of which no reader here asks what tensors are in them.
void WriteStep(const std::string& folder, int64_t step) {
  Manifest manifest{.run = SmallRun(), .state = StateAt(step), .files = {}};
  for (const absl::string_view name : kSummedFiles) {
    const std::string path = absl::StrCat(folder, "/", name);
    Write(path, absl::StrCat(name, " of step ", step));
    manifest.files[std::string(name)] = SumFile(path).value();
  }
  Write(absl::StrCat(folder, "/", kManifestFile), ManifestToJson(manifest));
}

// A run's DIR with checkpoints of steps 3 and 5, the newest named by `latest`.
struct Fixture {
  Fixture() : checkpoints(dir.File("checkpoints")) {
    for (const int64_t step : {3, 5}) WriteStep(FolderOf(step), step);
    Write(checkpoints + "/latest", "step-00000005\n");
  }
  std::string FolderOf(int64_t step) const { return CheckpointDirectory(checkpoints).FolderOf(Version(step)); }

  TempDir dir;
  std::string checkpoints;
};

void ExpectFinds(const std::string& path, const std::string& folder) {
  ASSERT_OK_AND_ASSIGN(const std::string found, FindCheckpointFolder(path));
  EXPECT_TRUE(std::filesystem::equivalent(found, folder)) << path << " gives " << found;
}

// ---- Finding ------------------------------------------------------------------------------------

TEST(CheckpointFilesTest, AStepFolderItsLatestAndTheRunAllMeanTheSame) {
  const Fixture f;
  for (const char* path : {"checkpoints/step-00000005", "checkpoints/step-00000005/", "checkpoints/latest",
                           "checkpoints", "checkpoints/", "", "."}) {
    ExpectFinds(f.dir.File(path), f.FolderOf(5));
  }
}

TEST(CheckpointFilesTest, AnOlderOneIsFoundWhenItIsAskedFor) {
  const Fixture f;
  ExpectFinds(f.FolderOf(3), f.FolderOf(3));
  Write(f.checkpoints + "/latest", "step-00000003\n");  // a run that went on from an earlier one
  ExpectFinds(f.dir.path(), f.FolderOf(3));
}

TEST(CheckpointFilesTest, AHuggingFaceFolderStandsForItselfAndHasNothingToBeComparedWith) {
  TempDir dir;
  Write(dir.File("gpt2/config.json"), "{}");
  ExpectFinds(dir.File("gpt2"), dir.File("gpt2"));
  EXPECT_FALSE(IsStepFolder(dir.File("gpt2")));
  EXPECT_OK(VerifyCheckpointFolder(dir.File("gpt2")));
}

TEST(CheckpointFilesTest, WhatIsNotThereIsNamed) {
  TempDir dir;
  EXPECT_THAT(FindCheckpointFolder(dir.File("nowhere")), StatusIs(absl::StatusCode::kNotFound, "nowhere"));
  EXPECT_THAT(FindCheckpointFolder(dir.path()), StatusIs(absl::StatusCode::kNotFound, "nor a folder checkpoints"));
  ASSERT_OK(MakeDirs(dir.File("checkpoints")));
  EXPECT_THAT(FindCheckpointFolder(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, "there is no checkpoint in " + dir.File("checkpoints")));
}

TEST(CheckpointFilesTest, OfAStepFolderThatIsNotThereItIsSaidWhereItMayHaveGone) {
  const Fixture f;
  for (const absl::Status& status :
       {FindCheckpointFolder(f.FolderOf(21)).status(), VerifyCheckpointFolder(f.FolderOf(21))}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                 "step-00000021: is not there, or not any more: a run removes checkpoints when it has "
                                 "newer ones"));
  }
}

TEST(CheckpointFilesTest, AnotherFileThanLatestIsRefused) {
  const Fixture f;
  const std::string path = f.FolderOf(5) + "/model.safetensors";
  EXPECT_THAT(FindCheckpointFolder(path), StatusIs(absl::StatusCode::kInvalidArgument, path + ": found a file"));
}

TEST(CheckpointFilesTest, LatestLeadsNowhereElse) {
  TempDir dir;
  WriteStep(dir.File("elsewhere/step-00000009"), 9);
  ASSERT_OK(MakeDirs(dir.File("checkpoints")));
  for (const std::string& text :
       {std::string("../elsewhere/step-00000009\n"), dir.File("elsewhere/step-00000009"), std::string("../../etc"),
        std::string("..\n"), std::string("step-00000009\n"), std::string()}) {
    Write(dir.File("checkpoints/latest"), text);
    for (const char* path : {"checkpoints/latest", "checkpoints", "."}) {
      EXPECT_THAT(FindCheckpointFolder(dir.File(path)), StatusIs(absl::StatusCode::kNotFound, "checkpoints")) << text;
    }
  }
}

TEST(CheckpointFilesTest, WithoutAUsefulLatestTheNewestCompleteOneIsTaken) {
  const Fixture f;
  Write(f.checkpoints + "/latest", "step-00000009\n");  // dangling
  ExpectFinds(f.dir.path(), f.FolderOf(5));
  ExpectFinds(f.checkpoints + "/latest", f.FolderOf(5));
  std::filesystem::remove(f.FolderOf(5) + "/optimizer.safetensors");
  ExpectFinds(f.dir.path(), f.FolderOf(3));
  std::filesystem::remove(f.FolderOf(3) + "/manifest.json");
  ExpectFinds(f.dir.path(), f.FolderOf(5));  // its damage is what there is to report
}

TEST(CheckpointFilesTest, ADamagedLatestIsNotPassedOver) {
  const Fixture f;
  std::filesystem::remove(f.FolderOf(5) + "/manifest.json");
  ExpectFinds(f.dir.path(), f.FolderOf(5));
}

TEST(CheckpointFilesTest, ARunInAFolderWithAStepsNameIsARun) {
  TempDir dir;
  WriteStep(dir.File("step-00000001/checkpoints/step-00000004"), 4);
  ExpectFinds(dir.File("step-00000001"), dir.File("step-00000001/checkpoints/step-00000004"));
}

// ---- Trusting -----------------------------------------------------------------------------------

TEST(CheckpointFilesTest, EveryFileIsComparedWithTheManifest) {
  const Fixture f;
  const std::string folder = f.FolderOf(5);
  ASSERT_OK(VerifyCheckpointFolder(folder));
  const auto good = TreeOf(folder);
  for (const absl::string_view name : kSummedFiles) {
    const std::string path = absl::StrCat(folder, "/", name);
    const std::string& content = good.at(std::string(name));
    const auto expect_refused = [&](const std::string& message) {
      for (const std::string& part : {absl::StrCat(path, ": ", message), std::string("; take an older checkpoint")}) {
        EXPECT_THAT(VerifyCheckpointFolder(folder), StatusIs(absl::StatusCode::kDataLoss, part));
      }
    };
    FlipByte(path, 3);
    expect_refused(absl::StrCat("found sha256 ", SumFile(path).value().sha256, ", must be "));
    for (const std::string& other : {content.substr(0, content.size() - 1), std::string(), content + "x"}) {
      Write(path, other);
      expect_refused(absl::StrCat("found ", other.size(), " bytes, must be ", content.size()));
    }
    std::filesystem::remove(path);
    expect_refused("found nothing");
    ASSERT_OK(MakeDirs(path));
    expect_refused("found no regular file");
    std::filesystem::remove(path);
    Write(path, content);
  }
  EXPECT_OK(VerifyCheckpointFolder(folder));
}

TEST(CheckpointFilesTest, DamageIsNamedByItsPlace) {
  const Fixture f;
  const std::string path = f.FolderOf(5) + "/model.safetensors";
  Write(path, std::string(3 * kPartBytes + 10, 'w'));
  const auto update_manifest = [&](ordered_json& manifest) {
    const FileSum sum = SumFile(path).value();
    ASSERT_EQ(sum.part_crcs.size(), 4u);
    std::string crcs;
    for (const uint32_t crc : sum.part_crcs) absl::StrAppend(&crcs, absl::Hex(crc, absl::kZeroPad8));
    manifest["files"]["model.safetensors"] = {{"bytes", sum.num_bytes}, {"sha256", sum.sha256}};
    if (manifest["format"] != 1) manifest["files"]["model.safetensors"]["crc32_per_mib"] = crcs;
  };
  const std::string manifest = f.FolderOf(5) + "/manifest.json";
  Write(manifest, EditManifest(ReadFile(manifest).value(), update_manifest));
  ASSERT_OK(VerifyCheckpointFolder(f.FolderOf(5)));
  const auto expect_damage = [&](const std::string& message) {
    EXPECT_THAT(VerifyCheckpointFolder(f.FolderOf(5)), StatusIs(absl::StatusCode::kDataLoss, message));
  };
  FlipByte(path, 3 * kPartBytes + 9);
  expect_damage("damaged in 1 of 4 parts, first between byte 3145728 and 3145737; take an older");
  FlipByte(path, kPartBytes);
  expect_damage("damaged in 2 of 4 parts, first between byte 1048576 and 2097151; take an older");
  FlipByte(path, 0);
  expect_damage("damaged in 3 of 4 parts, first between byte 0 and 1048575; take an older");

  for (const int64_t offset : {int64_t{0}, kPartBytes, 3 * kPartBytes + 9}) FlipByte(path, offset);
  Write(manifest, EditManifest(ReadFile(manifest).value(), [](ordered_json& m) { ToOlderFormat(m, 1); }));
  ASSERT_OK(VerifyCheckpointFolder(f.FolderOf(5)));
  FlipByte(path, 0);
  expect_damage("as its manifest says; take an older");
}

TEST(CheckpointFilesTest, AConfigOfAnotherAttentionThanTheModelsIsFoundWhereTheFolderIsReadAsAModel) {
  const Fixture f;
  const std::string folder = f.FolderOf(5), path = folder + "/config.json";
  ModelConfig model = {.family = ModelFamily::kLlama, .num_layers = 1, .d_model = 8, .num_heads = 2, .context = 4};
  model.vocab = 256;
  model.max_positions = 4;
  model.d_ff = 8;
  model.num_kv_heads = 2;
  model.d_head = 4;
  model.qkv_bias = true;
  model.sliding_window = 3;
  const auto write = [&](const std::string& config) {
    Write(path, config);
    ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(folder));
    manifest.run.model = model;
    manifest.files["config.json"] = SumFile(path).value();
    Write(folder + "/manifest.json", ManifestToJson(manifest));
  };
  ASSERT_NO_FATAL_FAILURE(write(ModelConfigToJson(model)));
  EXPECT_OK(VerifyCheckpointFolder(folder, CheckedFiles::kWeights));
  ModelConfig without_window = model;
  without_window.sliding_window = 0;
  ASSERT_NO_FATAL_FAILURE(write(ModelConfigToJson(without_window)));
  EXPECT_OK(VerifyCheckpointFolder(folder)) << "a resume goes by the manifest";
  EXPECT_THAT(VerifyCheckpointFolder(folder, CheckedFiles::kWeights),
              StatusIs(absl::StatusCode::kFailedPrecondition, path + ": an earlier version wrote another attention"));
}

TEST(CheckpointFilesTest, OnlyTheFilesAskedForAreSummed) {
  const Fixture f;
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(f.FolderOf(5)));
  FlipByte(f.FolderOf(5) + "/optimizer.safetensors", 0);
  EXPECT_OK(CheckComplete(f.FolderOf(5)));
  EXPECT_OK(CheckSums(f.FolderOf(5), manifest, CheckedFiles::kWeights));
  EXPECT_THAT(CheckSums(f.FolderOf(5), manifest, CheckedFiles::kAll),
              StatusIs(absl::StatusCode::kDataLoss, "optimizer.safetensors: found sha256"));
}

TEST(CheckpointFilesTest, AManifestThatIsNoneIsNamed) {
  for (const char* text : {"", "[]", "{}", R"({"format": 1})", R"({"format": 1, "files": {"../a": {"bytes": 1}}})"}) {
    TempDir dir;
    Write(dir.File("manifest.json"), text);
    EXPECT_THAT(ReadManifest(dir.path()), StatusIs(absl::StatusCode::kDataLoss, dir.File("manifest.json: "))) << text;
    EXPECT_THAT(VerifyCheckpointFolder(dir.path()), StatusIs(absl::StatusCode::kDataLoss, "take an older")) << text;
  }
}

TEST(CheckpointFilesTest, AnotherFormatIsNoDamage) {
  const Fixture f;
  const std::string path = f.FolderOf(5) + "/manifest.json";
  Write(path,
        EditManifest(ReadFile(path).value(), [](ordered_json& manifest) { manifest["format"] = kManifestFormat + 1; }));
  EXPECT_THAT(
      VerifyCheckpointFolder(f.FolderOf(5)),
      StatusIs(absl::StatusCode::kFailedPrecondition, absl::StrCat(path, ": format: found ", kManifestFormat + 1)));
}

TEST(CheckpointFilesTest, ACheckpointThatWasRemovedIsGoneAndNotDamaged) {
  const Fixture f;
  EXPECT_THAT(VerifyCheckpointFolder(f.FolderOf(7)), StatusIs(absl::StatusCode::kNotFound, "not any more"));
}

TEST(CheckpointFilesTest, AStepFolderThatLostItsManifestDoesNotPassAsSomethingElse) {
  const Fixture f;
  const std::string folder = f.FolderOf(5);
  std::filesystem::remove(folder + "/manifest.json");
  std::filesystem::create_directory_symlink(folder, f.dir.File("best"));
  for (const std::string& path : {folder, folder + "/", folder + "/.", f.dir.File("best")}) {
    EXPECT_TRUE(IsStepFolder(path)) << path;
    EXPECT_THAT(VerifyCheckpointFolder(path),
                StatusIs(absl::StatusCode::kDataLoss, "manifest.json: found nothing; take an older checkpoint"));
  }
  std::filesystem::remove(folder + "/config.json");
  ExpectFinds(folder, folder);
}

TEST(CheckpointFilesTest, ASumIsOfEveryByte) {
  TempDir dir;
  Write(dir.File("file"), "weights");
  ASSERT_OK_AND_ASSIGN(const FileSum sum, SumFile(dir.File("file")));
  EXPECT_EQ(sum.num_bytes, 7);
  const std::string content = "weights";
  EXPECT_EQ(sum.sha256, Sha256Hex({reinterpret_cast<const std::byte*>(content.data()), content.size()}));
  EXPECT_EQ(sum.part_crcs, std::vector<uint32_t>{0x1ad27358});  // python3: zlib.crc32(b"weights")
  EXPECT_THAT(SumFile(dir.path()), StatusIs(absl::StatusCode::kDataLoss, "no regular file"));
}

}  // namespace
}  // namespace eps
