#include "common/base/pending_file.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class PendingFileTest : public ::testing::Test {
 protected:
  size_t NumFiles() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir_.path())) ++count;
    return count;
  }

  TempDir dir_;
  std::string path_ = dir_.File("out.bin");
};

TEST_F(PendingFileTest, IsThereWholeOncePublished) {
  ASSERT_OK_AND_ASSIGN(const auto file, PendingFile::Create(path_));
  ASSERT_OK(file->Append("head"));
  ASSERT_OK(file->Append("tail"));
  ASSERT_OK(file->WriteAt(0, "H"));
  EXPECT_EQ(file->num_bytes(), 8);
  EXPECT_FALSE(std::filesystem::exists(path_));
  ASSERT_OK(file->Publish());
  EXPECT_THAT(ReadFile(path_), IsOkAndHolds("Headtail"));
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(PendingFileTest, LeavesNothingWhenItIsNotPublished) {
  {
    ASSERT_OK_AND_ASSIGN(const auto file, PendingFile::Create(path_));
    ASSERT_OK(file->Append("half"));
  }
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(PendingFileTest, ReplacesWhatWasThere) {
  ASSERT_OK(WriteFileAtomically(path_, "old"));
  ASSERT_OK_AND_ASSIGN(const auto file, PendingFile::Create(path_));
  ASSERT_OK(file->Append("new"));
  EXPECT_THAT(ReadFile(path_), IsOkAndHolds("old"));
  ASSERT_OK(file->Publish());
  EXPECT_THAT(ReadFile(path_), IsOkAndHolds("new"));
}

TEST_F(PendingFileTest, TakesAllOfAnother) {
  ASSERT_OK_AND_ASSIGN(const auto part, PendingFile::Create(dir_.File("part")));
  const std::string bytes((3 << 20) + 5, 'x');
  ASSERT_OK(part->Append(bytes));
  ASSERT_OK_AND_ASSIGN(const auto file, PendingFile::Create(path_));
  ASSERT_OK(file->Append("a"));
  ASSERT_OK(file->AppendAllOf(*part));
  ASSERT_OK(file->Publish());
  EXPECT_THAT(ReadFile(path_), IsOkAndHolds("a" + bytes));
}

TEST_F(PendingFileTest, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(PendingFile::Create(dir_.File("nowhere/out.bin")), StatusIs(absl::StatusCode::kNotFound, "nowhere"));
}

TEST_F(PendingFileTest, APlaceThatCannotBeTakenStaysAsItWas) {
  std::filesystem::create_directory(path_);
  {
    ASSERT_OK_AND_ASSIGN(const auto file, PendingFile::Create(path_));
    ASSERT_OK(file->Append("x"));
    EXPECT_FALSE(file->Publish().ok());
  }
  EXPECT_EQ(NumFiles(), 1u);
}

}  // namespace
}  // namespace eps
