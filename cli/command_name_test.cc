#include "cli/command_name.h"

#include <string>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

std::string TextOf(const std::string& words) {
  CLI::App app;
  app.require_subcommand(1);
  app.add_flag("--version");
  for (const char* name : {"train", "status", "stop", "top", "trace"}) app.add_subcommand(name)->add_flag("--resume");
  try {
    app.parse(words, /*program_name_included=*/false);
  } catch (const CLI::ParseError&) {
    return WrongNameText(app);
  }
  return "it is a command";
}

TEST(CommandNameTest, AMisspeltCommandIsNamedWithTheNearest) {
  EXPECT_EQ(TextOf("trian"), "\"trian\" is no command; do you mean train? `eps --help` lists them");
  EXPECT_EQ(TextOf("Status --resume"), "\"Status\" is no command; do you mean status? `eps --help` lists them");
  EXPECT_EQ(TextOf("--version tran --run x"), "\"tran\" is no command; do you mean train? `eps --help` lists them");
}

TEST(CommandNameTest, AllThatAreAsNearAreNamed) {
  EXPECT_EQ(TextOf("stp"), "\"stp\" is no command; do you mean stop? `eps --help` lists them");
  EXPECT_EQ(TextOf("trai"), "\"trai\" is no command; do you mean train? `eps --help` lists them");
  EXPECT_EQ(TextOf("traie"), "\"traie\" is no command; do you mean train or trace? `eps --help` lists them");
}

TEST(CommandNameTest, WhatIsLikeNoCommandIsNamedAlone) {
  for (const std::string word : {"inference", "x", "run"}) {
    EXPECT_EQ(TextOf(word), "\"" + word + "\" is no command; `eps --help` lists them");
  }
}

TEST(CommandNameTest, WhereNoNameIsWrongNothingIsSaid) {
  EXPECT_EQ(TextOf(""), "");
  EXPECT_EQ(TextOf("--unknown"), "");
  EXPECT_EQ(TextOf("--unknown 3"), "");
  EXPECT_EQ(TextOf("train --unknown"), "");
  EXPECT_EQ(TextOf("train trian"), "");
}

}  // namespace
}  // namespace eps::cli
