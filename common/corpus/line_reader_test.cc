#include "common/corpus/line_reader.h"

#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class LineReaderTest : public ::testing::Test {
 protected:
  // "number@offset:text" of each line.
  std::vector<std::string> Lines(const std::string& content) {
    EXPECT_OK(WriteFileAtomically(path_, content));
    const auto reader = LineReader::Open(path_);
    EXPECT_OK(reader);
    std::vector<std::string> lines;
    for (TextLine line;;) {
      const absl::StatusOr<bool> found = (*reader)->Next(line);
      EXPECT_OK(found);
      if (!found.ok() || !*found) break;
      lines.push_back(absl::StrCat(line.number, "@", line.offset_bytes, ":", line.text));
    }
    EXPECT_EQ((*reader)->offset_bytes(), static_cast<int64_t>(content.size()));
    return lines;
  }

  TempDir dir_;
  std::string path_ = dir_.File("lines");
};

TEST_F(LineReaderTest, LinesKnowTheirPlaces) {
  EXPECT_EQ(Lines("a\n\nbc\n"), (std::vector<std::string>{"1@0:a", "2@2:", "3@3:bc"}));
}

TEST_F(LineReaderTest, TheLastLineNeedsNoEnd) {
  EXPECT_EQ(Lines("a\nb"), (std::vector<std::string>{"1@0:a", "2@2:b"}));
}

TEST_F(LineReaderTest, ACarriageReturnBelongsToTheEnd) {
  EXPECT_EQ(Lines("a\r\nb\r\n"), (std::vector<std::string>{"1@0:a", "2@3:b"}));
}

TEST_F(LineReaderTest, AnEmptyFileHasNoLines) { EXPECT_TRUE(Lines("").empty()); }

TEST_F(LineReaderTest, LinesLongerThanABufferAreWhole) {
  const std::string lengthy(3'000'000, 'x');
  EXPECT_EQ(Lines(lengthy + "\nb\n" + lengthy),
            (std::vector<std::string>{"1@0:" + lengthy, "2@3000001:b", "3@3000003:" + lengthy}));
}

TEST_F(LineReaderTest, ALineThatIsTooLongIsNamedByItsPlace) {
  ASSERT_OK(WriteFileAtomically(path_, "ab\n12345678901\nc\n"));
  ASSERT_OK_AND_ASSIGN(const auto reader, LineReader::Open(path_, 10));
  TextLine line;
  EXPECT_THAT(reader->Next(line), IsOkAndHolds(true));
  EXPECT_THAT(reader->Next(line), StatusIs(kInvalid, "line 2, byte offset 3: a line of more than 10 bytes"));
  EXPECT_THAT(reader->Next(line), IsOkAndHolds(true));  // who leaves it out goes on behind it
  EXPECT_EQ(LinePlace(line), "line 3, byte offset 15");
  EXPECT_EQ(line.text, "c");
  EXPECT_THAT(reader->Next(line), IsOkAndHolds(false));
}

TEST_F(LineReaderTest, ALineThatIsTooLongMayBeLongerThanTheBufferAndTheLast) {
  const std::string lengthy(5'000'000, 'x');
  ASSERT_OK(WriteFileAtomically(path_, lengthy + "\nb\n" + lengthy));
  ASSERT_OK_AND_ASSIGN(const auto reader, LineReader::Open(path_, 10));
  TextLine line;
  EXPECT_THAT(reader->Next(line), StatusIs(kInvalid, "line 1, byte offset 0"));
  EXPECT_THAT(reader->Next(line), IsOkAndHolds(true));
  EXPECT_EQ(LinePlace(line), "line 2, byte offset 5000001");
  EXPECT_THAT(reader->Next(line), StatusIs(kInvalid, "line 3, byte offset 5000003"));
  EXPECT_THAT(reader->Next(line), IsOkAndHolds(false));
  EXPECT_EQ(reader->offset_bytes(), reader->file_bytes());
}

TEST_F(LineReaderTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(LineReader::Open(dir_.File("nowhere")), StatusIs(absl::StatusCode::kNotFound, "nowhere"));
  EXPECT_THAT(LineReader::Open(dir_.path()), StatusIs(kInvalid, "regular file"));
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(LineReader::Open(path_), StatusIs(kInvalid, "regular file"));
}

}  // namespace
}  // namespace eps
