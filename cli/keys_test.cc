#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/command.h"
#include "common/base/exit_code.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

int RunKeysFor(const std::string& out) {
  CLI::App app;
  int exit_code = -1;
  AddKeys(app, &exit_code);
  app.parse("keys --host example.org --out " + out, /*program_name_included=*/false);
  return exit_code;
}

void ExpectKeysIn(const std::string& folder) {
  struct stat info {};
  ASSERT_EQ(stat(folder.c_str(), &info), 0) << folder;
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  for (const char* name : {"ca.crt", "server.crt", "server.key", "client.crt", "client.key", "token"}) {
    EXPECT_TRUE(std::filesystem::exists(folder + "/" + name)) << name;
  }
}

TEST(KeysTest, ASlashAtTheEndOfTheFolderIsNoFolderOfItsOwn) {
  const TempDir dir;
  EXPECT_EQ(RunKeysFor(dir.File("plain")), kExitDone);
  ExpectKeysIn(dir.File("plain"));
  for (const std::string name : {"slash/", "slashes///", "dot/.", "new/inner/"}) {
    EXPECT_EQ(RunKeysFor(dir.File(name)), kExitDone) << name;
    ExpectKeysIn(dir.File(name));
  }
}

TEST(KeysTest, CommandsToCopyAreQuoted) {
  const TempDir dir;
  CLI::App app;
  int exit_code = -1;
  AddKeys(app, &exit_code);
  const std::string out = dir.File("my keys");
  testing::internal::CaptureStdout();
  std::vector<std::string> words = {out, "--out", "example.org", "--host", "keys"};  // the last one first
  app.parse(words);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, kExitDone);
  EXPECT_NE(text.find("--tls-key '" + out + "/client.key' --token-file '" + out + "/worker.token'\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("--connect example.org:7070 "), std::string::npos) << text;
}

TEST(KeysTest, APatternIsNoAddressToConnectTo) {
  const TempDir dir;
  CLI::App app;
  int exit_code = -1;
  AddKeys(app, &exit_code);
  testing::internal::CaptureStdout();
  app.parse("keys --host *.example.org --out " + dir.File("keys"), /*program_name_included=*/false);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, kExitDone);
  EXPECT_NE(text.find("--connect HOST.example.org:7070 "), std::string::npos) << text;
}

TEST(KeysTest, AFolderThatIsThereIsLeftAsItIs) {
  const TempDir dir;
  EXPECT_EQ(RunKeysFor(dir.path()), kExitBadInput);
  EXPECT_EQ(RunKeysFor(dir.path() + "/"), kExitBadInput);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace eps::cli
