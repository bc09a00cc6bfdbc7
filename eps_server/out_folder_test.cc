#include "eps_server/out_folder.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(OutFolderTest, OneThatWasMadeGoesAgainUnlessItIsKept) {
  const TempDir dir;
  for (const bool keeps : {false, true}) {
    {
      OutFolder folder(dir.File("out"));
      ASSERT_OK(folder.Claim());
      EXPECT_FALSE(std::filesystem::exists(dir.File("out")));
      ASSERT_OK(folder.Make());
      if (keeps) folder.Keep();
    }
    EXPECT_EQ(std::filesystem::exists(dir.File("out")), keeps);
  }
}

TEST(OutFolderTest, OneAtATimeHasIt) {
  const TempDir dir;
  OutFolder first(dir.path()), second(dir.path());
  ASSERT_OK(first.Claim());
  EXPECT_THAT(second.Claim(), StatusIs(absl::StatusCode::kFailedPrecondition, "in use"));
  EXPECT_OK(first.Reclaim());
}

TEST(OutFolderTest, AFileIsNone) {
  const TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("out"), "x"));
  EXPECT_THAT(OutFolder(dir.File("out")).Claim(), StatusIs(absl::StatusCode::kInvalidArgument, "not a folder"));
}

TEST(OutFolderTest, InPlaceOfOneThatWasMovedAnotherIsMadeAndTaken) {
  const TempDir dir;
  OutFolder folder(dir.File("out")), other(dir.File("out"));
  ASSERT_OK(folder.Make());
  folder.Keep();
  std::filesystem::rename(dir.File("out"), dir.File("elsewhere"));
  ASSERT_OK(folder.Reclaim());
  EXPECT_TRUE(std::filesystem::exists(dir.File("out")));
  EXPECT_THAT(other.Claim(), StatusIs(absl::StatusCode::kFailedPrecondition, "in use"));
}

TEST(OutFolderTest, WhatIsAnothersMeanwhileIsLeftToIt) {
  const TempDir dir;
  OutFolder folder(dir.File("out")), other(dir.File("out"));
  ASSERT_OK(folder.Make());
  folder.Keep();
  std::filesystem::rename(dir.File("out"), dir.File("elsewhere"));
  ASSERT_OK(other.Make());
  other.Keep();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(folder.Reclaim(), StatusIs(absl::StatusCode::kFailedPrecondition, "its folder was moved")) << i;
  }
}

}  // namespace
}  // namespace eps::server
