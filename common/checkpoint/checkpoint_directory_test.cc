#include "common/checkpoint/checkpoint_directory.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// A step folder with one file that says which it is.
void MakeFolder(const CheckpointDirectory& directory, const std::string& name, const std::string& content) {
  const std::string folder = directory.path() + "/" + name;
  ASSERT_OK(MakeDirs(folder));
  ASSERT_OK(WriteFileAtomically(folder + "/file", content));
}

std::string ContentOf(const CheckpointDirectory& directory, Version version) {
  return ReadFile(directory.FolderOf(version) + "/file").value_or("nothing");
}

bool Has(const CheckpointDirectory& directory, const std::string& name) {
  return std::filesystem::exists(directory.path() + "/" + name);
}

TEST(CheckpointDirectoryTest, NamesAreOneToOne) {
  EXPECT_EQ(StepFolderName(Version(120)), "step-00000120");
  EXPECT_EQ(StepFolderName(Version(123456789012)), "step-123456789012");
  for (const int64_t step : {int64_t{0}, int64_t{99999999}, int64_t{100000000}}) {
    EXPECT_EQ(ParseStepFolderName(StepFolderName(Version(step))), Version(step));
  }
  for (const char* name :
       {"", "step-", "step-1", "step-000000001", "step--0000001", "step-+0000001", "step- 0000001", "step-0000000x",
        "step-00000001 ", "step-00000001/", "step-99999999999999999999", ".tmp-step-00000001", "../step-00000001"}) {
    EXPECT_EQ(ParseStepFolderName(name), std::nullopt) << name;
  }
}

TEST(CheckpointDirectoryTest, WithoutADirectoryThereIsNothingAndNothingIsMade) {
  TempDir dir;
  const CheckpointDirectory directory(dir.File("a/checkpoints"));
  EXPECT_THAT(directory.Steps(), IsOkAndHolds(std::vector<Version>{}));
  EXPECT_EQ(directory.Latest(), std::nullopt);
  EXPECT_OK(directory.CleanUp());
  EXPECT_FALSE(std::filesystem::exists(dir.File("a")));
}

TEST(CheckpointDirectoryTest, AFileInItsPlaceIsAnError) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("checkpoints"), "x"));
  EXPECT_FALSE(CheckpointDirectory(dir.File("checkpoints")).Steps().ok());
}

TEST(CheckpointDirectoryTest, WhatIsFinishedStandsAndIsTheLatest) {
  TempDir dir;
  const CheckpointDirectory directory(dir.File("a/checkpoints"));
  for (const int64_t step : {3, 12}) {
    ASSERT_OK_AND_ASSIGN(const std::string aside, directory.StartWriting(Version(step)));
    ASSERT_OK(WriteFileAtomically(aside + "/file", std::to_string(step)));
    EXPECT_FALSE(Has(directory, StepFolderName(Version(step))));
    ASSERT_OK(directory.FinishWriting(Version(step)));
    EXPECT_FALSE(std::filesystem::exists(aside));
    EXPECT_EQ(directory.Latest(), Version(step));
  }
  EXPECT_THAT(ReadFile(directory.path() + "/latest"), IsOkAndHolds(std::string("step-00000012\n")));
  EXPECT_THAT(directory.Steps(), IsOkAndHolds(std::vector<Version>{Version(12), Version(3)}));
}

TEST(CheckpointDirectoryTest, OneOfTheSameStepIsReplaced) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, "step-00000007", "old");
  ASSERT_OK_AND_ASSIGN(const std::string aside, directory.StartWriting(Version(7)));
  ASSERT_OK(WriteFileAtomically(aside + "/file", "new"));
  ASSERT_OK(directory.FinishWriting(Version(7)));
  EXPECT_EQ(ContentOf(directory, Version(7)), "new");
  EXPECT_FALSE(Has(directory, ".old-step-00000007"));
}

TEST(CheckpointDirectoryTest, WritingStartsWithAnEmptyFolderWhateverWasLeft) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, ".tmp-step-00000007", "half");
  ASSERT_OK_AND_ASSIGN(const std::string aside, directory.StartWriting(Version(7)));
  EXPECT_TRUE(std::filesystem::is_empty(aside));
  directory.AbandonWriting(Version(7));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(CheckpointDirectoryTest, CleanUpRemovesWhatAKilledProcessLeftAndNothingElse) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, "step-00000005", "kept");
  MakeFolder(directory, ".tmp-step-00000006", "half");
  MakeFolder(directory, ".removed-step-00000001", "half gone");
  MakeFolder(directory, ".tmp-mine", "a person's");
  MakeFolder(directory, "notes", "a person's");
  ASSERT_OK(WriteFileAtomically(dir.File("latest"), "step-00000005\n"));
  ASSERT_OK(WriteFileAtomically(dir.File("latest.tmp.77.0"), "step-000"));
  ASSERT_OK(directory.CleanUp());
  for (const char* name : {"step-00000005", ".tmp-mine", "notes", "latest"}) EXPECT_TRUE(Has(directory, name)) << name;
  for (const char* name : {".tmp-step-00000006", ".removed-step-00000001", "latest.tmp.77.0"}) {
    EXPECT_FALSE(Has(directory, name)) << name;
  }
}

TEST(CheckpointDirectoryTest, KilledBetweenTheTwoRenamesTheOldOneComesBack) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, ".old-step-00000007", "old");
  MakeFolder(directory, ".tmp-step-00000007", "new");
  ASSERT_OK(WriteFileAtomically(dir.File("latest"), "step-00000007\n"));
  ASSERT_OK(directory.CleanUp());
  EXPECT_EQ(ContentOf(directory, Version(7)), "old");
  EXPECT_EQ(directory.Latest(), Version(7));
}

TEST(CheckpointDirectoryTest, KilledAfterTheTwoRenamesTheNewOneStands) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, ".old-step-00000007", "old");
  MakeFolder(directory, "step-00000007", "new");
  ASSERT_OK(directory.CleanUp());
  EXPECT_EQ(ContentOf(directory, Version(7)), "new");
  EXPECT_FALSE(Has(directory, ".old-step-00000007"));
}

TEST(CheckpointDirectoryTest, ALatestThatSaysNothingUsefulIsNone) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, "step-00000007", "x");
  for (const std::string& text : {std::string(), std::string("step-00000008\n"), std::string("../step-00000007"),
                                  std::string("step-00000007\n\n"), std::string(1000, 'x'), std::string("\0", 1)}) {
    ASSERT_OK(WriteFileAtomically(dir.File("latest"), text));
    EXPECT_EQ(directory.Latest(), std::nullopt) << text.substr(0, 40);
  }
  ASSERT_OK(WriteFileAtomically(dir.File("latest"), "step-00000007"));
  EXPECT_EQ(directory.Latest(), Version(7));
}

TEST(CheckpointDirectoryTest, RemovedIsGone) {
  TempDir dir;
  const CheckpointDirectory directory(dir.path());
  MakeFolder(directory, "step-00000007", "x");
  EXPECT_OK(directory.Remove(Version(7)));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THAT(directory.Remove(Version(7)), StatusIs(absl::StatusCode::kNotFound, "step-00000007"));
}

}  // namespace
}  // namespace eps
