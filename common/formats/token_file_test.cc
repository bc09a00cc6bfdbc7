#include "common/formats/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class TokenFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& content, int token_bytes) {
    EXPECT_OK(WriteFileAtomically(path_, content));
    return TokenFile::Open(path_, token_bytes);
  }

  TempDir dir_;
  std::string path_ = dir_.File("tokens");
};

TEST_F(TokenFileTest, BytesAreTokens) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(std::string("a\x00\xFF", 3), 1));
  EXPECT_EQ(file->num_tokens(), 3);
  std::vector<int32_t> ids(3);
  ASSERT_OK(file->Read(0, 256, absl::MakeSpan(ids)));
  EXPECT_EQ(ids, (std::vector<int32_t>{97, 0, 255}));
}

TEST_F(TokenFileTest, IdsAreLittleEndian) {
  const std::string bytes("\x01\x02\x03\x00\xFF\xFF\x00\x00", 8);
  std::vector<int32_t> ids(2);
  ASSERT_OK_AND_ASSIGN(const auto two, Open(bytes, 2));
  EXPECT_EQ(two->num_tokens(), 4);
  ASSERT_OK(two->Read(1, 65536, absl::MakeSpan(ids)));
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 65535}));
  ASSERT_OK_AND_ASSIGN(const auto four, Open(bytes, 4));
  EXPECT_EQ(four->num_tokens(), 2);
  ASSERT_OK(four->Read(0, 1 << 24, absl::MakeSpan(ids)));
  EXPECT_EQ(ids, (std::vector<int32_t>{0x030201, 65535}));
}

TEST_F(TokenFileTest, AnIdBeyondTheVocabularyIsNamedWithItsPlace) {
  std::vector<int32_t> ids(2);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(std::string("\x01\x00\x02\x00\x63\x00", 6), 2));
  EXPECT_THAT(
      file->Read(1, 99, absl::MakeSpan(ids)),
      StatusIs(kInvalid, "\"" + path_ + "\": token 2 (byte offset 4): id 99, must be below the vocabulary of 99"));
  EXPECT_OK(file->Read(1, 100, absl::MakeSpan(ids)));
  EXPECT_OK(file->Read(0, 99, absl::MakeSpan(ids)));  // what is not read is not looked at
}

TEST_F(TokenFileTest, AByteBeyondTheVocabularyIsNamedToo) {
  std::vector<int32_t> ids(1);
  ASSERT_OK_AND_ASSIGN(const auto file, Open("z", 1));
  EXPECT_THAT(file->Read(0, 122, absl::MakeSpan(ids)), StatusIs(kInvalid, "id 122"));
}

TEST_F(TokenFileTest, AnIdThatIsNegativeAsAnIntIsRefusedForAnyVocabulary) {
  std::vector<int32_t> ids(1);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(std::string("\xFF\xFF\xFF\xFF", 4), 4));
  EXPECT_THAT(file->Read(0, std::numeric_limits<int64_t>::max(), absl::MakeSpan(ids)),
              StatusIs(kInvalid, "id 4294967295"));
}

TEST_F(TokenFileTest, ReadingBeyondTheEndIsRefused) {
  std::vector<int32_t> ids(2);
  ASSERT_OK_AND_ASSIGN(const auto file, Open("abc", 1));
  for (const int64_t first :
       {int64_t{2}, int64_t{-1}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(file->Read(first, 256, absl::MakeSpan(ids)), StatusIs(absl::StatusCode::kOutOfRange, "of 3"));
  }
  ids.resize(4);
  EXPECT_THAT(file->Read(0, 256, absl::MakeSpan(ids)), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_OK(file->Read(3, 256, {}));
}

TEST_F(TokenFileTest, MissingEmptyAndOddFilesAreNamed) {
  EXPECT_THAT(TokenFile::Open(dir_.File("none"), 1), StatusIs(absl::StatusCode::kNotFound, dir_.File("none")));
  EXPECT_THAT(Open("", 1), StatusIs(kInvalid, "\"" + path_ + "\" is empty"));
  EXPECT_THAT(Open("abc", 2), StatusIs(kInvalid, "3 bytes, must be a multiple of 2"));
  EXPECT_THAT(Open("abcde", 4), StatusIs(kInvalid, "5 bytes, must be a multiple of 4"));
  EXPECT_THAT(Open("abc", 3), StatusIs(kInvalid, "token_bytes: 3"));
  EXPECT_THAT(TokenFile::Open(dir_.path(), 1), StatusIs(kInvalid, "not a regular file"));
}

TEST_F(TokenFileTest, AFileThatWasCutShortMeanwhileIsAnError) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(std::string(10000, 'x'), 1));
  ASSERT_EQ(truncate(path_.c_str(), 100), 0);
  std::vector<int32_t> ids(50);
  EXPECT_OK(file->Read(0, 256, absl::MakeSpan(ids)));
  EXPECT_THAT(file->Read(9000, 256, absl::MakeSpan(ids)),
              StatusIs(absl::StatusCode::kDataLoss, "it had 10000 bytes when it was opened"));
}

TEST_F(TokenFileTest, APipeIsRefusedWithoutWaitingForItsWriter) {
  ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(TokenFile::Open(dir_.File("pipe"), 1), StatusIs(kInvalid, "not a regular file"));
}

}  // namespace
}  // namespace eps
