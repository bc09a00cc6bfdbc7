#include "common/run_folder/run_folder.h"

#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

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

TEST(RunFolderTest, CheckpointsOfWhichNoneWasFinishedAreNone) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(folder.checkpoints().StartWriting(Version(3)));
  EXPECT_OK(folder.CheckHoldsNoRun());
  folder.checkpoints().AbandonWriting(Version(3));
  EXPECT_OK(folder.CheckHoldsNoRun());
}

TEST(RunFolderTest, ARunThatHasEndedWithoutCheckpointsLeavesNothingToGoOnFrom) {
  const TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(WriteFileAtomically(folder.summary(), "{}"));
  EXPECT_THAT(folder.CheckHoldsNoRun(), StatusIs(absl::StatusCode::kFailedPrecondition, "left no checkpoint"));
  EXPECT_THAT(folder.CheckCanGoOn(), StatusIs(absl::StatusCode::kFailedPrecondition, "nothing to go on from"));
}

}  // namespace
}  // namespace eps
