#include "common/base/shown_text.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ShownTextTest, ANameIsShownAsItsOwnerWroteIt) {
  EXPECT_EQ(EscapeText("gütig, Отзыв, 良い, 😀, it's"), "gütig, Отзыв, 良い, 😀, it's");
}

TEST(ShownTextTest, WhatWouldEndAMessageOrMoveACursorIsEscaped) {
  EXPECT_EQ(EscapeText("a\"b\\c\r\n\t"), "a\\\"b\\\\c\\r\\n\\t");
  EXPECT_EQ(EscapeText(absl::string_view("\x1b[2J\0\x7f", 6)), "\\x1b[2J\\x00\\x7f");
  EXPECT_EQ(EscapeText("\xC2\x9B"
                       "2J"),
            "\\xc2\\x9b2J");
}

TEST(ShownTextTest, BytesThatAreNoUtf8AreShownByTheirNumbers) {
  EXPECT_EQ(EscapeText("g\xFCt"), "g\\xfct");
  EXPECT_EQ(EscapeText("\xE2\x82"
                       "a\xED\xA0\x80"),
            "\\xe2\\x82a\\xed\\xa0\\x80");
  EXPECT_EQ(EscapeText(""), "");
}

TEST(ShownTextTest, ALongTextIsCutBetweenCharacters) {
  EXPECT_EQ(QuoteText("abc", 3), "\"abc\"");
  EXPECT_EQ(QuoteText("abcd", 3), "\"abc...\"");
  EXPECT_EQ(QuoteText("aяя", 3), "\"aя...\"");
  EXPECT_EQ(QuoteText("aяя", 4), "\"aя...\"");
  EXPECT_EQ(QuoteText("😀😀", 7), "\"😀...\"");
  EXPECT_EQ(QuoteText("😀", 3), "\"...\"");
  EXPECT_EQ(CutText(std::string(10, '\x80'), 5).size(), 2u) << "no characters, which have no borders";
}

TEST(ShownTextTest, OfManyNamesTheFirstAreSaidAndHowManyMoreThereAre) {
  std::vector<std::string> names = {"a", "b"};
  EXPECT_EQ(SomeOf(names), "a, b");
  names.resize(9, "c");
  EXPECT_EQ(SomeOf(names), "a, b, c, c, c, c, c, c and 1 more");
}

}  // namespace
}  // namespace eps
