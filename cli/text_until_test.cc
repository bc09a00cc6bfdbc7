#include "cli/text_until.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

// What is shown of `text` at each byte that comes, apart by "|", and of what is left at the end behind a "#".
std::string Shown(absl::string_view text, size_t begin, const std::string& end) {
  TextUntil until(begin, end);
  std::string shown;
  for (size_t size = begin + 1; size <= text.size() && !until.has_ended(); ++size) {
    absl::StrAppend(&shown, until.Next(text.substr(0, size)), "|");
  }
  return absl::StrCat(shown, "#", until.Rest(text));
}

TEST(TextUntilTest, ShowsWhatComesUpToTheEnd) {
  EXPECT_EQ(Shown("ab", 0, ""), "a|b|#");
  EXPECT_EQ(Shown("ab\n\ncd", 0, "\n\n"), "a|b|||#");
  EXPECT_EQ(Shown("ab\ncd", 0, "\n\n"), "a|b||\nc|d|#");
  EXPECT_EQ(Shown("ab\n", 0, "\n\n"), "a|b||#\n");
  EXPECT_EQ(Shown("\n\n", 0, "\n\n"), "||#");
}

TEST(TextUntilTest, WhatStandsBeforeIsNoPartOfTheEnd) {
  EXPECT_EQ(Shown("q\n\na\n\n", 3, "\n\n"), "a|||#");
  EXPECT_EQ(Shown("q\n\na", 2, "\n\n"), "|\na|#");
}

TEST(TextUntilTest, APartOfTheEndThatBeginsAnewIsKeptBackAnew) { EXPECT_EQ(Shown("aab", 0, "ab"), "|a||#"); }

// A token may change what those before it spell.
TEST(TextUntilTest, ATextThatBecomesShorterShowsNothing) {
  TextUntil until(0, "");
  EXPECT_EQ(until.Next("abc"), "abc");
  EXPECT_EQ(until.Next("ab"), "");
  EXPECT_EQ(until.Rest("ab"), "");
  EXPECT_EQ(until.Next("abcd"), "d");
}

}  // namespace
}  // namespace eps::cli
