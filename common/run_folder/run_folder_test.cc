#include "common/run_folder/run_folder.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunFolderTest, OneThatIsEmptyOrNotThereHoldsNoRun) {
  const TempDir dir;
  for (const std::string& path : {dir.path(), dir.File("not_there")}) {
    const RunFolder folder(path);
    EXPECT_FALSE(folder.HoldsCheckpoints());
    EXPECT_OK(folder.CheckHoldsNoRun());
    EXPECT_OK(folder.CheckCanGoOn());
  }
}

TEST(RunFolderTest, ACheckpointIsARunEvenBeforeLatestNamesIt) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(MakeDirs(folder.checkpoints().FolderOf(Version(3))));
  EXPECT_TRUE(folder.HoldsCheckpoints());
  EXPECT_THAT(folder.CheckHoldsNoRun(), StatusIs(absl::StatusCode::kFailedPrecondition, "--resume"));
  ASSERT_OK(WriteFileAtomically(folder.summary(), "{}"));
  EXPECT_OK(folder.CheckCanGoOn());
}

TEST(RunFolderTest, ARunWhoseCheckpointStandsAsideGoesOnAndIsNotBegunAnew) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(MakeDirs(folder.checkpoints().path() + "/.old-step-00000003"));
  ASSERT_OK(WriteFileAtomically(folder.checkpoints().path() + "/latest", "step-00000003\n"));
  EXPECT_TRUE(folder.HoldsCheckpoints());
  EXPECT_THAT(folder.CheckHoldsNoRun(), StatusIs(absl::StatusCode::kFailedPrecondition, "--resume"));
  EXPECT_OK(folder.CheckCanGoOn());
}

TEST(RunFolderTest, ARunWhoseCheckpointsAreGoneIsNeitherBegunAnewNorGoneOnWith) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(MakeDirs(folder.checkpoints().path()));
  ASSERT_OK(WriteFileAtomically(folder.checkpoints().path() + "/latest", "step-00000003\n"));
  EXPECT_TRUE(folder.HoldsCheckpoints());
  for (const absl::Status& refused : {folder.CheckHoldsNoRun(), folder.CheckCanGoOn()}) {
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  "checkpoints/latest names step-00000003, which is not there, nor is any other "
                                  "checkpoint: put it back, remove checkpoints/latest to begin from step 0, or give"));
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("--resume")));
  }
  ASSERT_OK(WriteFileAtomically(folder.summary(), "{}"));
  EXPECT_THAT(folder.CheckCanGoOn(), StatusIs(absl::StatusCode::kFailedPrecondition, "put it back, or give another"));
}

TEST(RunFolderTest, CheckpointsOfWhichNoneWasFinishedAreNone) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(folder.checkpoints().StartWriting(Version(3)));
  EXPECT_OK(folder.CheckHoldsNoRun());
  folder.checkpoints().AbandonWriting(Version(3));
  EXPECT_OK(folder.CheckHoldsNoRun());
}

TEST(RunFolderTest, APathThatLeavesNoRoomForItsFilesIsRefused) {
  std::string path = "/tmp";
  while (path.size() < 3900) path += "/folder";
  EXPECT_OK(RunFolder(path).CheckCanGoOn());
  while (path.size() < 4000) path += "/folder";
  EXPECT_THAT(RunFolder(path).CheckHoldsNoRun(), StatusIs(absl::StatusCode::kInvalidArgument, ", at most 3968"));
}

TEST(RunFolderTest, ACheckpointsFolderThatCannotBeReadIsNotTakenForNone) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(WriteFileAtomically(folder.checkpoints().path(), "a file, which nobody can list"));
  ASSERT_OK(WriteFileAtomically(folder.summary(), "{}"));
  EXPECT_THAT(folder.CheckCanGoOn(), StatusIs(absl::StatusCode::kFailedPrecondition, "list"));
}

TEST(RunFolderTest, ARunThatHasEndedWithoutCheckpointsLeavesNothingToGoOnFrom) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(WriteFileAtomically(folder.summary(), "{}"));
  EXPECT_THAT(folder.CheckHoldsNoRun(), StatusIs(absl::StatusCode::kFailedPrecondition, "left no checkpoint"));
  EXPECT_THAT(folder.CheckCanGoOn(), StatusIs(absl::StatusCode::kFailedPrecondition, "nothing to go on from"));
}

TEST(RunFolderTest, WhatAKilledDaemonWasWritingIsRemovedAndNothingElse) {
  TempDir dir;
  const char* const stay[] = {"metrics.jsonl", "metrics.jsonl.tmp.1", "metrics.jsonl.tmp.1.x", "mine.tmp.1.0",
                              "xmetrics.jsonl.tmp.1.0"};
  const char* const go[] = {"metrics.jsonl.tmp.19719.1", "starting.json.tmp.356.0", "loss.svg.tmp.24195.4"};
  for (const char* name : stay) ASSERT_OK(WriteFileAtomically(dir.File(name), "x"));
  for (const char* name : go) ASSERT_OK(WriteFileAtomically(dir.File(name), "x"));
  RunFolder(dir.path()).RemoveHalfWritten();
  for (const char* name : stay) EXPECT_TRUE(std::filesystem::exists(dir.File(name))) << name;
  for (const char* name : go) EXPECT_FALSE(std::filesystem::exists(dir.File(name))) << name;
  RunFolder(dir.File("not there")).RemoveHalfWritten();
}

}  // namespace
}  // namespace eps
