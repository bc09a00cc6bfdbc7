#include "common/security/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

int ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(SecretFileTest, WhatIsWrittenIsTheOwnersAloneWhateverTheUmaskIs) {
  const TempDir dir;
  const mode_t before = umask(0);
  EXPECT_OK(WriteSecretFile(dir.File("open"), "one"));
  umask(0777);
  EXPECT_OK(WriteSecretFile(dir.File("closed"), "two"));
  umask(before);
  EXPECT_EQ(ModeOf(dir.File("open")), 0600);
  EXPECT_EQ(ModeOf(dir.File("closed")), 0600);
  ASSERT_OK_AND_ASSIGN(const std::string content, ReadSecretFile(dir.File("open")));
  EXPECT_EQ(content, "one");
}

TEST(SecretFileTest, NothingIsWrittenOver) {
  const TempDir dir;
  EXPECT_OK(WriteSecretFile(dir.File("key"), "old"));
  EXPECT_THAT(WriteSecretFile(dir.File("key"), "new"), StatusIs(StatusCode::kAlreadyExists, "key"));
  ASSERT_OK_AND_ASSIGN(const std::string content, ReadSecretFile(dir.File("key")));
  EXPECT_EQ(content, "old");
}

TEST(SecretFileTest, AFileThatOthersMayReadIsRefusedWithItsModeAndTheMend) {
  const TempDir dir;
  EXPECT_OK(WriteSecretFile(dir.File("key"), "not to be seen"));
  for (const mode_t mode : {0640, 0604, 0620, 0601, 0644}) {
    ASSERT_EQ(chmod(dir.File("key").c_str(), mode), 0);
    const absl::Status status = ReadSecretFile(dir.File("key")).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition, "chmod 600 " + dir.File("key")));
    EXPECT_EQ(status.message().find("not to be seen"), absl::string_view::npos);
  }
  ASSERT_EQ(chmod(dir.File("key").c_str(), 0640), 0);
  EXPECT_THAT(ReadSecretFile(dir.File("key")), StatusIs(StatusCode::kFailedPrecondition, "mode 0640"));
  ASSERT_EQ(chmod(dir.File("key").c_str(), 0400), 0);
  EXPECT_OK(ReadSecretFile(dir.File("key")));
}

TEST(SecretFileTest, WhatIsNoFileOrNotThereIsNamed) {
  const TempDir dir;
  EXPECT_THAT(ReadSecretFile(dir.path()), StatusIs(StatusCode::kInvalidArgument, "not a file"));
  EXPECT_THAT(ReadSecretFile(dir.File("nowhere")), StatusIs(StatusCode::kNotFound, "nowhere"));
  // A pipe that nobody writes to does not hang the program.
  ASSERT_EQ(mkfifo(dir.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(ReadSecretFile(dir.File("pipe")), StatusIs(StatusCode::kInvalidArgument, "not a file"));
  EXPECT_OK(WriteSecretFile(dir.File("large"), std::string((64 << 10) + 1, 'x')));
  EXPECT_THAT(ReadSecretFile(dir.File("large")), StatusIs(StatusCode::kInvalidArgument, "65537 bytes"));
}

TEST(SecretFileTest, AFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const TempDir dir;
  EXPECT_OK(WriteSecretFile(dir.File("key"), "x"));
  ASSERT_EQ(chown(dir.File("key").c_str(), 12345, 12345), 0);
  EXPECT_THAT(ReadSecretFile(dir.File("key")), StatusIs(StatusCode::kFailedPrecondition, "12345"));
}

}  // namespace
}  // namespace eps
