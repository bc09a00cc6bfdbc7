#include "common/base/command_line.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Told {
  int exit_code = 0;
  std::string out, err;
};

// What a program says that is started with `words`: one with commands, or without.
Told Parse(std::vector<std::string> words, bool has_commands) {
  CLI::App app;
  app.set_version_flag("--version", "program 1");
  std::string run, override;
  int count = 0;
  CLI::App* command = has_commands ? app.add_subcommand("train") : &app;
  if (has_commands) app.require_subcommand(1);
  CLI::Option* run_option = command->add_option("--run", run);
  command->add_option("--out", run)->required();
  command->add_option("--set", override)->needs(run_option);
  command->add_option("--count", count);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Told told;
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    told.exit_code = EndOfParsing("program", app, error);
  }
  told.out = testing::internal::GetCapturedStdout();
  told.err = testing::internal::GetCapturedStderr();
  return told;
}

TEST(CommandLineTest, AnUnknownFlagIsNamedBeforeWhatIsMissing) {
  constexpr char kUnknown[] = "The following argument was not expected: --owt\n";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--owt", "a"},
                                             {"--owt=a"},
                                             {"--set", "x", "--out", "a", "--owt", "a"},
                                             {"--out", "a", "--owt", "a"},
                                             {"--count", "x", "--owt", "a"}}) {
    for (const bool has_commands : {false, true}) {
      std::vector<std::string> typed = words;
      if (has_commands) typed.insert(typed.begin(), "train");
      const Told told = Parse(typed, has_commands);
      EXPECT_EQ(told.exit_code, kExitBadInput);
      EXPECT_THAT(told.err, StartsWith(kUnknown)) << words.front() << " " << has_commands;
    }
  }
  EXPECT_THAT(Parse({"--owt"}, /*has_commands=*/true).err, StartsWith(kUnknown));
}

TEST(CommandLineTest, OtherMistakesAreToldAsTheyAre) {
  EXPECT_THAT(Parse({}, false).err, StartsWith("--out is required\n"));
  EXPECT_THAT(Parse({"stray"}, false).err, StartsWith("--out is required\n"));
  EXPECT_THAT(Parse({"--out", "a", "--set", "b"}, false).err, StartsWith("--set requires --run\n"));
  EXPECT_THAT(Parse({"--count", "x", "--out", "a"}, false).err, HasSubstr("--count"));
  EXPECT_THAT(Parse({}, true).err, StartsWith("A subcommand is required\n"));
  EXPECT_EQ(Parse({"stray"}, false).exit_code, kExitBadInput);
}

TEST(CommandLineTest, HelpAndVersionAreNoMistakes) {
  const Told version = Parse({"--version"}, false);
  EXPECT_EQ(version.exit_code, kExitDone);
  EXPECT_EQ(version.out, "program 1\n");
  const Told help = Parse({"train", "--help"}, true);
  EXPECT_EQ(help.exit_code, kExitDone);
  EXPECT_THAT(help.out, HasSubstr("--run"));
  EXPECT_EQ(help.err, "");
}

}  // namespace
}  // namespace eps
