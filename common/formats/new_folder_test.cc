#include "common/formats/new_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

absl::Status WriteOneFile(const std::string& folder) { return WriteFileAtomically(folder + "/file", "whole"); }

TEST(NewFolderTest, IsThereWhenItIsWhole) {
  TempDir dir;
  const auto write = [&](const std::string& aside) {
    EXPECT_FALSE(std::filesystem::exists(dir.File("out")));
    return WriteOneFile(aside);
  };
  ASSERT_OK(WriteNewFolder(dir.File("out"), write));
  EXPECT_THAT(ReadFile(dir.File("out/file")), IsOkAndHolds("whole"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(NewFolderTest, OneThatIsEmptyIsReplacedAndOneThatIsNotIsLeftAsItIs) {
  TempDir dir;
  std::filesystem::create_directory(dir.File("empty"));
  EXPECT_OK(CheckNewFolder(dir.File("empty")));
  EXPECT_OK(WriteNewFolder(dir.File("empty"), WriteOneFile));
  for (const absl::Status& status : {CheckNewFolder(dir.path()), WriteNewFolder(dir.path(), WriteOneFile)}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists, "not empty"));
  }
  EXPECT_FALSE(std::filesystem::exists(dir.File("file")));
}

TEST(NewFolderTest, AWriterThatFailsLeavesNothing) {
  TempDir dir;
  const auto fail = [](const std::string& aside) {
    EXPECT_OK(WriteOneFile(aside));
    return absl::DataLossError("no");
  };
  EXPECT_THAT(WriteNewFolder(dir.File("out"), fail), StatusIs(absl::StatusCode::kDataLoss, "no"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(NewFolderTest, AFolderBesideTheTargetIsNotTouched) {
  TempDir dir;
  std::filesystem::create_directory(dir.File("out.tmp"));
  std::ofstream(dir.File("out.tmp/kept")) << "x";
  ASSERT_OK(WriteNewFolder(dir.File("out"), WriteOneFile));
  EXPECT_TRUE(std::filesystem::exists(dir.File("out.tmp/kept")));
}

TEST(NewFolderTest, ALinkToAFolderIsFollowedAndAFileIsInTheWay) {
  TempDir dir;
  std::filesystem::create_directories(dir.File("disk/export"));
  std::filesystem::create_directory_symlink(dir.File("disk/export"), dir.File("out"));
  ASSERT_OK(WriteNewFolder(dir.File("out"), WriteOneFile));
  EXPECT_TRUE(std::filesystem::is_symlink(dir.File("out")));
  EXPECT_TRUE(std::filesystem::exists(dir.File("disk/export/file")));
  std::ofstream(dir.File("plain")).flush();
  EXPECT_THAT(WriteNewFolder(dir.File("plain"), WriteOneFile),
              StatusIs(absl::StatusCode::kAlreadyExists, "is there and no folder"));
  EXPECT_TRUE(std::filesystem::is_regular_file(dir.File("plain")));
  std::filesystem::create_symlink(dir.File("nowhere"), dir.File("lost"));
  EXPECT_THAT(WriteNewFolder(dir.File("lost"), WriteOneFile),
              StatusIs(absl::StatusCode::kAlreadyExists, "is a link that leads nowhere"));
}

TEST(NewFolderTest, WhatAKilledWriterLeftIsRemovedAndWhatAnotherStillWritesIsNot) {
  TempDir dir;
  for (const char* name : {"out.tmp.1", "out.tmp.22", "out.tmp.3x", "other.tmp.1"}) {
    std::filesystem::create_directory(dir.File(name));
    std::ofstream(dir.File(name) + "/file") << "half";
  }
  ASSERT_OK_AND_ASSIGN(const FileDescriptor writing, LockDirectory(dir.File("out.tmp.22")));
  ASSERT_OK(WriteNewFolder(dir.File("out"), WriteOneFile));
  EXPECT_FALSE(std::filesystem::exists(dir.File("out.tmp.1")));
  for (const char* name : {"out.tmp.22", "out.tmp.3x", "other.tmp.1"}) {
    EXPECT_TRUE(std::filesystem::exists(dir.File(name) + "/file")) << name;
  }
}

}  // namespace
}  // namespace eps
