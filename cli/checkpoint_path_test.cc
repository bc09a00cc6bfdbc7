#include "cli/checkpoint_path.h"

#include <string>

#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(CheckpointPathTest, ItLiesInTheFolderAsWhoAsksCallsIt) {
  const TempDir dir;
  const std::string there = dir.File("checkpoints/step-00000004");
  ASSERT_OK(MakeDirs(there));
  for (const char* path : {"out/run/checkpoints/step-00000004", "/elsewhere/checkpoints/step-00000004"}) {
    EXPECT_EQ(CheckpointPath(dir.path(), path), there);
  }
}

TEST(CheckpointPathTest, OneThatLiesElsewhereOrNobodyKnowsWhereIsCalledAsTheDaemonCallsIt) {
  const TempDir dir;
  EXPECT_EQ(CheckpointPath(dir.path(), "/models/gpt2"), "/models/gpt2");
  EXPECT_EQ(CheckpointPath("", "run/checkpoints/step-00000004"), "run/checkpoints/step-00000004");
  ASSERT_OK(MakeDirs(dir.File("checkpoints")));
  EXPECT_EQ(CheckpointPath(dir.path(), ""), "");
}

}  // namespace
}  // namespace eps::cli
