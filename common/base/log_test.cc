#include "common/base/log.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(LogTest, AnEventIsOneLineWithTimeLevelNameAndFields) {
  CaptureStderr();
  LogInfo("blob_published", {{"blob", 7}, {"version", int64_t{42}}, {"rate", 0.5}});
  const std::string line = GetCapturedStderr();
  EXPECT_THAT(line, ::testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                                            "INFO blob_published blob=7 version=42 rate=0\\.5\n"));
}

TEST(LogTest, LevelsAreNamed) {
  CaptureStderr();
  LogWarning("a");
  LogError("b");
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr(" WARNING a\n"));
  EXPECT_THAT(text, HasSubstr(" ERROR b\n"));
}

TEST(LogTest, ValuesWithSpacesAreQuoted) {
  CaptureStderr();
  LogInfo("e", {{"path", "a b"}, {"empty", ""}, {"plain", "a/b.txt"}, {"expr", "a=b"}});
  EXPECT_THAT(GetCapturedStderr(), HasSubstr(" path=\"a b\" empty=\"\" plain=a/b.txt expr=\"a=b\"\n"));
}

TEST(LogTest, AValueCannotForgeASecondLine) {
  CaptureStderr();
  LogInfo("e", {{"message", "x\n2026-01-01T00:00:00.000Z ERROR forged \"q\" \\"}});
  const std::string text = GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(text, HasSubstr("\\n2026-01-01"));
  EXPECT_THAT(text, HasSubstr("\\\"q\\\" \\\\"));
}

TEST(LogTest, WhatControlsATerminalIsEscapedWhereverItStands) {
  CaptureStderr();
  LogInfo("e", {{"c0", "\x1b[2J"},
                {"c1",
                 "\xC2\x9B"
                 "2J"},
                {"no_utf8", "g\xFCt"}});
  EXPECT_THAT(GetCapturedStderr(), HasSubstr(R"( c0="\x1b[2J" c1="\xc2\x9b2J" no_utf8="g\xfct")"));
}

TEST(LogTest, TextThatIsNotAsciiStaysReadable) {
  CaptureStderr();
  LogInfo("e", {{"path", "/data/\xC3\xA9t\xC3\xA9.txt"}, {"spaced", "\xC3\xA9 x"}});
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("path=/data/\xC3\xA9t\xC3\xA9.txt spaced=\"\xC3\xA9 x\"\n"));
}

TEST(LogTest, ASingleQuoteIsLeftAsItIs) {
  CaptureStderr();
  LogInfo("e", {{"message", "unexpected '}', it's \\' here"}});
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("message=\"unexpected '}', it's \\\\' here\"\n"));
}

TEST(LogTest, LinesOfSeveralThreadsDoNotMix) {
  CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) LogInfo("tick", {{"thread", t}, {"i", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = GetCapturedStderr();
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, ::testing::MatchesRegex("[^ ]+ INFO tick thread=[0-3] i=[0-9]+"));
  }
}

}  // namespace
}  // namespace eps
