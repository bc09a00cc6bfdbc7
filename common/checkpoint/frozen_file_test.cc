#include "common/checkpoint/frozen_file.h"

#include <fcntl.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "common/base/file_util.h"
#include "common/checkpoint/manifest.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class FrozenFileTest : public ::testing::Test {
 protected:
  FrozenFileTest() {
    for (const std::string& folder : {from_, to_}) EXPECT_OK(MakeDirs(folder));
    EXPECT_OK(WriteFileAtomically(file_, "frozen"));
  }
  FrozenFile File() const { return FrozenFile::Of(from_, {.num_bytes = 6, .sha256 = "sum"}).value(); }
  void ExpectNotLinked(const FrozenFile& file) const {
    EXPECT_THAT(file.LinkInto(to_), IsOkAndHolds(false));
    EXPECT_TRUE(std::filesystem::is_empty(to_));
  }

  TempDir dir_;
  const std::string from_ = dir_.File("from"), to_ = dir_.File("to");
  const std::string file_ = from_ + "/" + kFrozenFile;
};

TEST_F(FrozenFileTest, TheSameBytesAreAFileOfBothFolders) {
  const FrozenFile file = File();
  EXPECT_EQ(file.sum().sha256, "sum");
  EXPECT_THAT(file.LinkInto(to_), IsOkAndHolds(true));
  EXPECT_TRUE(std::filesystem::equivalent(file_, to_ + "/" + kFrozenFile));
  std::filesystem::remove_all(from_);
  EXPECT_THAT(ReadFile(to_ + "/" + kFrozenFile), IsOkAndHolds("frozen"));
}

TEST_F(FrozenFileTest, OneThatIsGoneIsNotLinked) {
  const FrozenFile file = File();
  std::filesystem::remove_all(from_);
  ExpectNotLinked(file);
}

TEST_F(FrozenFileTest, OneThatWasReplacedOrWrittenToIsNotLinked) {
  const FrozenFile file = File();
  ASSERT_OK(WriteFileAtomically(file_, "FROZEN"));
  ExpectNotLinked(file);
  const FrozenFile other = File();
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor written, OpenFile(file_, O_WRONLY));
    ASSERT_OK(WriteAt(written, file_, 0, "frozen"));
  }
  // As a clock of a few milliseconds would not see it.
  std::filesystem::last_write_time(file_, std::filesystem::last_write_time(file_) + std::chrono::seconds(1));
  ExpectNotLinked(other);
}

TEST_F(FrozenFileTest, OfAFolderWithoutOneThereIsNone) {
  EXPECT_THAT(FrozenFile::Of(to_, {}).status(), StatusIs(absl::StatusCode::kNotFound, to_ + "/" + kFrozenFile));
}

}  // namespace
}  // namespace eps
