#include "common/checkpoint/frozen_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "common/base/file_util.h"
#include "common/checkpoint/manifest.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class FrozenFileTest : public ::testing::Test {
 protected:
  FrozenFileTest() {
    for (const std::string& folder : {from_, to_}) EXPECT_OK(MakeDirs(folder));
    EXPECT_OK(WriteFileAtomically(file_, "frozen"));
  }
  FrozenFile File() const { return FrozenFile::Of(from_).value(); }
  void ExpectLinked(const FrozenFile& file) const {
    ASSERT_OK_AND_ASSIGN(const FrozenFile::LinkResult result, file.LinkInto(to_));
    EXPECT_TRUE(result.is_linked) << result.why_not;
  }
  void ExpectNotLinked(const FrozenFile& file, const std::string& why) const {
    ASSERT_OK_AND_ASSIGN(const FrozenFile::LinkResult result, file.LinkInto(to_));
    EXPECT_FALSE(result.is_linked);
    EXPECT_THAT(result.why_not, testing::HasSubstr(why));
    EXPECT_TRUE(std::filesystem::is_empty(to_));
  }

  TempDir dir_;
  const std::string from_ = dir_.File("from"), to_ = dir_.File("to");
  const std::string file_ = from_ + "/" + kFrozenFile;
};

TEST_F(FrozenFileTest, TheSameBytesAreAFileOfBothFolders) {
  ExpectLinked(File());
  EXPECT_TRUE(std::filesystem::equivalent(file_, to_ + "/" + kFrozenFile));
  std::filesystem::remove_all(from_);
  EXPECT_THAT(ReadFile(to_ + "/" + kFrozenFile), IsOkAndHolds("frozen"));
}

TEST_F(FrozenFileTest, OneThatIsGoneIsNotLinked) {
  const FrozenFile file = File();
  std::filesystem::remove_all(from_);
  ExpectNotLinked(file, "cannot link \"" + file_ + "\": No such file");
}

TEST_F(FrozenFileTest, OneThatWasReplacedOrWrittenToIsNotLinked) {
  const FrozenFile file = File();
  ASSERT_OK(WriteFileAtomically(file_, "FROZEN"));
  ExpectNotLinked(file, "is not what was written");
  const FrozenFile other = File();
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor written, OpenFile(file_, O_WRONLY));
    ASSERT_OK(WriteAt(written, file_, 0, "frozen"));
  }
  // As a clock of a few milliseconds would not see it.
  std::filesystem::last_write_time(file_, std::filesystem::last_write_time(file_) + std::chrono::seconds(1));
  ExpectNotLinked(other, "was written to since");
}

TEST_F(FrozenFileTest, OneThatIsLongerAtTheSameTimeIsNotLinked) {
  const FrozenFile file = File();
  const auto modified = std::filesystem::last_write_time(file_);
  std::filesystem::resize_file(file_, 7);
  std::filesystem::last_write_time(file_, modified);
  ExpectNotLinked(file, "was written to since");
}

TEST_F(FrozenFileTest, OneThatIsALinkElsewhereOrBecomesOneIsNone) {
  const FrozenFile file = File();
  std::filesystem::rename(file_, dir_.File("store"));
  std::filesystem::create_symlink(dir_.File("store"), file_);
  ExpectNotLinked(file, "is no regular file");
  EXPECT_THAT(FrozenFile::Of(from_).status(), StatusIs(absl::StatusCode::kFailedPrecondition, "is no regular file"));
}

TEST_F(FrozenFileTest, AnotherUsersIsNone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const FrozenFile file = File();
  ASSERT_EQ(chown(file_.c_str(), 12345, 12345), 0);
  ExpectNotLinked(file, "is another user's");
  EXPECT_THAT(FrozenFile::Of(from_).status(), StatusIs(absl::StatusCode::kFailedPrecondition, "is another user's"));
}

TEST_F(FrozenFileTest, WhereItsFolderIsRenamedItIsTheSame) {
  const FrozenFile file = File();
  const std::string renamed = dir_.File("renamed");
  std::filesystem::rename(from_, renamed);
  ExpectLinked(file.In(renamed));
}

TEST_F(FrozenFileTest, OfAFolderWithoutOneThereIsNone) {
  EXPECT_THAT(FrozenFile::Of(to_).status(), StatusIs(absl::StatusCode::kNotFound, to_ + "/" + kFrozenFile));
}

}  // namespace
}  // namespace eps
