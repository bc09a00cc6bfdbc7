#include "common/base/file_util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(FileUtilTest, WhatIsWrittenIsRead) {
  const TempDir dir;
  std::string content(200000, 'x');
  content[5] = '\0';
  EXPECT_OK(WriteFileAtomically(dir.File("a"), content));
  EXPECT_THAT(ReadFile(dir.File("a")), IsOkAndHolds(content));
  EXPECT_OK(WriteFileAtomically(dir.File("a"), ""));
  EXPECT_THAT(ReadFile(dir.File("a")), IsOkAndHolds(""));
  EXPECT_EQ(Names(dir.path()), std::vector<std::string>{"a"});
}

TEST(FileUtilTest, WhatAKilledProcessLeftIsInNobodysWay) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const TemporaryFile first, CreateTemporaryFile(dir.File("a")));
  const size_t number_at = first.path.rfind('.') + 1;
  const int number = std::stoi(first.path.substr(number_at));
  const std::string next = absl::StrCat(first.path.substr(0, number_at), number + 1);
  ASSERT_OK(OpenFile(next, O_WRONLY | O_CREAT));  // as another process of this number had it
  EXPECT_OK(WriteFileAtomically(dir.File("a"), "x"));
  EXPECT_THAT(ReadFile(dir.File("a")), IsOkAndHolds("x"));
}

TEST(FileUtilTest, AMissingFileIsNamed) {
  const TempDir dir;
  EXPECT_THAT(ReadFile(dir.File("none.txt")),
              StatusIs(absl::StatusCode::kNotFound, "\"" + dir.File("none.txt") + "\": No such file or directory"));
}

TEST(FileUtilTest, WhatIsRemovedNeedNotBeThere) {
  const TempDir dir;
  EXPECT_OK(WriteFileAtomically(dir.File("a"), "x"));
  EXPECT_OK(RemoveIfThere(dir.File("a")));
  EXPECT_EQ(Names(dir.path()), std::vector<std::string>());
  EXPECT_OK(RemoveIfThere(dir.File("a")));
  EXPECT_THAT(RemoveIfThere(dir.path()), StatusIs(absl::StatusCode::kFailedPrecondition, "cannot remove"));
}

TEST(FileUtilTest, AFolderIsNoFile) {
  const TempDir dir;
  EXPECT_THAT(ReadFile(dir.path()), StatusIs(absl::StatusCode::kFailedPrecondition, "Is a directory"));
}

TEST(FileUtilTest, AFileThatIsTooLongIsNotRead) {
  const TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("a"), "12345"));
  EXPECT_THAT(ReadFile(dir.File("a"), 5), IsOkAndHolds("12345"));
  EXPECT_THAT(ReadFile(dir.File("a"), 4), StatusIs(absl::StatusCode::kInvalidArgument, "longer than 4 bytes"));
  EXPECT_THAT(ReadFile("/dev/zero", 1000), StatusIs(absl::StatusCode::kInvalidArgument, "/dev/zero"));
}

TEST(FileUtilTest, APipeOrADeviceIsNotReplaced) {
  const TempDir dir;
  ASSERT_EQ(mkfifo(dir.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(WriteFileAtomically(dir.File("pipe"), "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, "no regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(dir.File("pipe")));
  EXPECT_EQ(Names(dir.path()), std::vector<std::string>{"pipe"});
}

TEST(FileUtilTest, AFailedWriteLeavesNothingBehind) {
  const TempDir dir;
  EXPECT_THAT(WriteFileAtomically(dir.File("none/a"), "x"), StatusIs(absl::StatusCode::kNotFound, "none/a"));
  ASSERT_OK(MakeDirs(dir.File("folder")));
  EXPECT_THAT(WriteFileAtomically(dir.File("folder"), "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, "folder\": it is a folder"));
  EXPECT_EQ(Names(dir.path()), std::vector<std::string>{"folder"});
}

TEST(FileUtilTest, AFullDiskIsNamedAsSuch) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor full, OpenFile("/dev/full", O_WRONLY));
  EXPECT_THAT(WriteAt(full, "/dev/full", 0, "x"),
              StatusIs(absl::StatusCode::kUnavailable, "\"/dev/full\": No space left on device"));
}

TEST(FileUtilTest, OnlyWhatTheCallerNamedIsBadInput) {
  for (const int error_number : {ENOSPC, EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOBUFS}) {
    EXPECT_EQ(StartExitCode(FileError(error_number, "write", "a")), kExitFailed) << strerror(error_number);
  }
  for (const int error_number : {ENOENT, EACCES, EROFS, EEXIST, ENOTDIR}) {
    EXPECT_EQ(StartExitCode(FileError(error_number, "write", "a")), kExitBadInput) << strerror(error_number);
  }
}

TEST(FileUtilTest, WriteAtGoesToItsPlace) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(FileDescriptor file, OpenFile(dir.File("a"), O_WRONLY | O_CREAT));
  ASSERT_OK(WriteAt(file, dir.File("a"), 3, "def"));
  ASSERT_OK(WriteAt(file, dir.File("a"), 0, "abc"));
  ASSERT_OK(file.Close());
  EXPECT_THAT(ReadFile(dir.File("a")), IsOkAndHolds("abcdef"));
}

TEST(FileUtilTest, MakeDirsMakesParentsAndTakesWhatIsThere) {
  const TempDir dir;
  EXPECT_OK(MakeDirs(dir.File("a/b/c")));
  EXPECT_OK(MakeDirs(dir.File("a/b/c")));
  EXPECT_OK(MakeDirs(dir.File("a/b/c/")));
  EXPECT_OK(MakeDirs("/"));
  EXPECT_TRUE(std::filesystem::is_directory(dir.File("a/b/c")));
}

TEST(FileUtilTest, MakeDirsNamesThePartThatIsAFile) {
  const TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("a"), "x"));
  EXPECT_THAT(MakeDirs(dir.File("a/b")), StatusIs(absl::StatusCode::kAlreadyExists, "\"" + dir.File("a") + "\""));
}

TEST(FileUtilTest, SyncingAFolderThatIsNotThereFails) {
  const TempDir dir;
  EXPECT_OK(SyncDirectory(dir.path()));
  EXPECT_THAT(SyncDirectory(dir.File("none")), StatusIs(absl::StatusCode::kNotFound, "none"));
}

TEST(FileUtilTest, ADescriptorIsClosedOnceAndMoves) {
  ASSERT_OK_AND_ASSIGN(FileDescriptor a, OpenFile("/dev/null", O_RDONLY));
  const int number = a.get();
  FileDescriptor b = std::move(a);
  EXPECT_EQ(b.get(), number);
  {
    FileDescriptor c;
    c = std::move(b);
    EXPECT_TRUE(c.is_open());
  }
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(FileUtilTest, TheFolderOfAPath) {
  EXPECT_EQ(DirName("a/b/c"), "a/b");
  EXPECT_EQ(DirName("c"), ".");
  EXPECT_EQ(DirName("/c"), "/");
}

TEST(FileUtilTest, AFolderIsLockedByOneAtATime) {
  TempDir dir;
  {
    auto first = LockDirectory(dir.path());
    ASSERT_OK(first.status());
    EXPECT_THAT(LockDirectory(dir.path()).status(), StatusIs(absl::StatusCode::kFailedPrecondition, "in use"));
  }
  EXPECT_OK(LockDirectory(dir.path()).status());
}

}  // namespace
}  // namespace eps
