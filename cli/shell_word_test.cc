#include "cli/shell_word.h"

#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(ShellWordTest, WhatAShellWouldTakeApartIsQuoted) {
  EXPECT_EQ(ShellWord("out/run-1_b.textproto"), "out/run-1_b.textproto");
  EXPECT_EQ(ShellWord("schl\xc3\xbcssel"), "schl\xc3\xbcssel");
  EXPECT_EQ(ShellWord("my keys/a"), "'my keys/a'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord("$HOME;x"), "'$HOME;x'");
  EXPECT_EQ(ShellWord("[::1]:7070"), "'[::1]:7070'");
  EXPECT_EQ(ShellWord(""), "''");
}

}  // namespace
}  // namespace eps::cli
