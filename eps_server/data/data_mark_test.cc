#include "eps_server/data/data_mark.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/sha256.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

DataMark MarkOf(const std::string& content) {
  TempDir dir;
  EXPECT_OK(WriteFileAtomically(dir.File("data"), content));
  return MarkDataFile(dir.File("data")).value();
}

// No two of its 64 KiB are alike.
std::string Text(size_t num_bytes) {
  std::string text;
  for (uint32_t i = 0; text.size() < num_bytes; ++i) text += std::to_string(i * 2654435761u);
  text.resize(num_bytes);
  return text;
}

TEST(DataMarkTest, AFileOfUpToFourMebibytesIsSummedWhole) {
  for (const size_t num_bytes : {size_t{1}, size_t{1} << 16, (size_t{1} << 16) + 1, size_t{1} << 22}) {
    const std::string text = Text(num_bytes);
    const DataMark mark = MarkOf(text);
    EXPECT_EQ(mark.num_bytes, static_cast<int64_t>(num_bytes));
    EXPECT_EQ(mark.sha256, Sha256Hex({reinterpret_cast<const std::byte*>(text.data()), text.size()})) << num_bytes;
  }
}

TEST(DataMarkTest, AnotherStartEndOrMiddleOfALargeFileIsSeen) {
  const std::string text = Text(10'000'001);
  const DataMark mark = MarkOf(text);
  EXPECT_EQ(MarkOf(text), mark);
  for (const size_t changed : {size_t{0}, size_t{65535}, text.size() - 1, text.size() - 65536}) {
    std::string other = text;
    other[changed] ^= 1;
    EXPECT_NE(MarkOf(other), mark) << changed;
  }
  std::string other = text;
  other.replace(5'000'000, 500'000, Text(500'000));
  EXPECT_NE(MarkOf(other), mark);
  EXPECT_NE(MarkOf(text + "x"), mark);
  EXPECT_NE(MarkOf(text.substr(1)), mark);
}

TEST(DataMarkTest, WhatIsNotThereIsNamed) {
  EXPECT_THAT(MarkDataFile("/nowhere/data").status(), StatusIs(absl::StatusCode::kNotFound, "/nowhere/data"));
}

TEST(DataMarkTest, OfSeveralFilesEachCounts) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("a"), "one"));
  ASSERT_OK(WriteFileAtomically(dir.File("b"), "three"));
  const std::vector<std::string> both = {dir.File("a"), dir.File("b")};
  ASSERT_OK_AND_ASSIGN(const DataMark mark, MarkDataFiles(both));
  EXPECT_EQ(mark.num_bytes, 8);
  EXPECT_EQ(*MarkDataFiles({dir.File("a")}), *MarkDataFile(dir.File("a")));
  EXPECT_FALSE(*MarkDataFiles({dir.File("b"), dir.File("a")}) == mark);
  ASSERT_OK(WriteFileAtomically(dir.File("b"), "thref"));
  EXPECT_FALSE(*MarkDataFiles(both) == mark);
}

}  // namespace
}  // namespace eps::server
