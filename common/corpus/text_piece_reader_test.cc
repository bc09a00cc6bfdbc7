#include "common/corpus/text_piece_reader.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class TextPieceReaderTest : public ::testing::Test {
 protected:
  // Pieces, "|" between those of a document; documents as elements.
  std::vector<std::string> Documents(const std::string& content, const std::optional<std::string>& separator,
                                     size_t piece_bytes = TextPieceReader::kPieceBytes) {
    EXPECT_OK(WriteFileAtomically(path_, content));
    const auto reader = TextPieceReader::Open(path_, separator, piece_bytes);
    EXPECT_OK(reader);
    std::vector<std::string> documents;
    for (TextPiece piece;;) {
      const absl::StatusOr<bool> found = (*reader)->Next(piece);
      EXPECT_OK(found);
      if (!found.ok() || !*found) break;
      EXPECT_EQ(piece.starts_document, ended_);
      EXPECT_EQ(content.substr(static_cast<size_t>(piece.offset_bytes), piece.text.size()), piece.text);
      ended_ = piece.ends_document;
      if (piece.starts_document) {
        documents.push_back(piece.text);
      } else {
        absl::StrAppend(&documents.back(), "|", piece.text);
      }
    }
    EXPECT_TRUE(ended_);
    return documents;
  }

  TempDir dir_;
  std::string path_ = dir_.File("text");
  bool ended_ = true;
};

using Strings = std::vector<std::string>;

TEST_F(TextPieceReaderTest, AFileIsADocument) {
  EXPECT_EQ(Documents("a\r\nb\n\n", std::nullopt), (Strings{"a\r\nb\n\n"}));
}

TEST_F(TextPieceReaderTest, AnEmptyFileIsAnEmptyDocument) {
  EXPECT_EQ(Documents("", std::nullopt), (Strings{""}));
  EXPECT_EQ(Documents("\xEF\xBB\xBF", std::nullopt), (Strings{""}));
}

TEST_F(TextPieceReaderTest, AByteOrderMarkIsNoText) {
  EXPECT_EQ(Documents("\xEF\xBB\xBF"
                      "abc",
                      std::nullopt),
            (Strings{"abc"}));
  EXPECT_EQ(Documents("\xEF\xBB\xBF---\na\n---\n\xEF\xBB\xBF"
                      "b",
                      "---"),
            (Strings{"", "a\n",
                     "\xEF\xBB\xBF"
                     "b"}))
      << "in the middle it is a character";
  EXPECT_EQ(Documents("\xEF\xBB", std::nullopt), (Strings{"\xEF\xBB"}));
}

TEST_F(TextPieceReaderTest, AnEmptyLineSeparatesParagraphs) {
  EXPECT_EQ(Documents("a\nb\n\nc\r\n\r\n\n d\n \ne", ""), (Strings{"a\nb\n", "c\r\n", "", " d\n \ne"}));
  EXPECT_EQ(Documents("a\n\n", ""), (Strings{"a\n"}));
  EXPECT_EQ(Documents("\na", ""), (Strings{"", "a"}));
}

TEST_F(TextPieceReaderTest, ALineOfItsOwnSeparates) {
  EXPECT_EQ(Documents("a\nb\n---\nc ---\n--- \n---\r\n---\nd", "---"), (Strings{"a\nb\n", "c ---\n--- \n", "", "d"}));
}

TEST_F(TextPieceReaderTest, NothingFollowsTheLastSeparator) {
  EXPECT_EQ(Documents("a\n---\n", "---"), (Strings{"a\n"}));
  EXPECT_EQ(Documents("a\n---", "---"), (Strings{"a\n"}));
}

TEST_F(TextPieceReaderTest, ASeparatorThatFallsOnTheEdgeOfABufferIsSeen) {
  for (int length = (1 << 18) - 8; length < (1 << 18) + 3; ++length) {
    const std::string line(static_cast<size_t>(length), 'x');
    EXPECT_EQ(Documents(line + "\n---\r\nb\n", "---"), (Strings{line + "\n", "b\n"})) << length;
  }
}

TEST_F(TextPieceReaderTest, LongDocumentsComeInPiecesThatEndAtLines) {
  std::string text;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "line ", i, "\n");
  const Strings documents = Documents(text, std::nullopt, 100);
  ASSERT_EQ(documents.size(), 1u);
  Strings pieces;
  std::string piece;
  for (const char c : documents[0]) {
    if (c == '|') {
      pieces.push_back(piece);
      piece.clear();
    } else {
      piece.push_back(c);
    }
  }
  pieces.push_back(piece);
  EXPECT_GT(pieces.size(), 3u);
  EXPECT_EQ(absl::StrJoin(pieces, ""), text);
  for (size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_EQ(pieces[i].back(), '\n');
}

TEST_F(TextPieceReaderTest, ALongLineComesInPiecesThatEndAtWordsWithTheSameBytes) {
  std::string text;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, i > 0 ? " " : "", "word", i);
  const Strings documents = Documents(text, std::nullopt, 100);
  ASSERT_EQ(documents.size(), 1u);
  const Strings pieces = absl::StrSplit(documents[0], '|');
  EXPECT_GT(pieces.size(), 10u);
  EXPECT_EQ(absl::StrJoin(pieces, ""), text);
  for (size_t i = 1; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].substr(0, 5), " word") << "the space stays with the word behind it";
    EXPECT_GT(pieces[i - 1].size(), 50u);
  }
}

TEST(TextCutTest, CutsWhereNoTokenizerJoins) {
  EXPECT_EQ(TextCut("abcdefgh\nij"), 9u);
  EXPECT_EQ(TextCut("abcdef\ng\nij"), 9u);         // the last one
  EXPECT_EQ(TextCut("abcdefg\nh j"), 8u);          // before any space
  EXPECT_EQ(TextCut("a\nbcdefghij"), 10u);         // not in the first half
  EXPECT_EQ(TextCut("abcdefgh\xE2\x82\xAC"), 8u);  // not in a character
  EXPECT_EQ(TextCut("\x80\x80\x80\x80\x80"), 5u);
  EXPECT_EQ(TextCut("a"), 1u);
}

TEST(TextCutTest, CutsInFrontOfWhiteSpaceWhereNoLineEndIsOne) {
  EXPECT_EQ(TextCut("abcdef gh i"), 9u);
  EXPECT_EQ(TextCut("abcdefg\thi"), 7u);
  EXPECT_EQ(TextCut("abcdefg   i"), 7u);    // of several all
  EXPECT_EQ(TextCut("abcdefg \nij"), 7u);   // a line end behind a space
  EXPECT_EQ(TextCut("abcdefgh\n i"), 8u);   // and in front of one
  EXPECT_EQ(TextCut("abcdefg\n\nij"), 7u);  // between two
  EXPECT_EQ(TextCut("abcdefg hi\n\nj"), 7u);
  EXPECT_EQ(TextCut("ab cdefghij"), 10u);  // not in the first half
  EXPECT_EQ(TextCut("abcdefghij "), 10u);
}

TEST_F(TextPieceReaderTest, ABadSeparatorIsRefused) {
  ASSERT_OK(WriteFileAtomically(path_, "a"));
  EXPECT_THAT(TextPieceReader::Open(path_, "a\nb"), StatusIs(absl::StatusCode::kInvalidArgument, "separator"));
  EXPECT_THAT(TextPieceReader::Open(path_, std::string(2000, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, "separator: 2000 bytes"));
}

}  // namespace
}  // namespace eps
