#include "common/security/file_stamps.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class FileStampsTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_.File(name), std::ios::trunc) << content;
    return dir_.File(name);
  }
  const TempDir dir_;
};

TEST_F(FileStampsTest, WhatStaysIsNoChangeAndEachChangeIsToldOnce) {
  const std::string a = Write("a", "one"), b = Write("b", "two");
  FileStamps stamps({a, "", b});
  EXPECT_FALSE(stamps.Changed());
  Write("b", "three");
  EXPECT_TRUE(stamps.Changed());
  EXPECT_FALSE(stamps.Changed());
}

TEST_F(FileStampsTest, AnotherFileInItsPlaceIsAChangeThoughItIsAsLargeAndAsOld) {
  const std::string a = Write("a", "one");
  FileStamps stamps({a});
  const std::string other = Write("other", "six");
  std::filesystem::last_write_time(other, std::filesystem::last_write_time(a));
  std::filesystem::rename(other, a);
  EXPECT_TRUE(stamps.Changed());
}

TEST_F(FileStampsTest, ALinkThatLeadsElsewhereIsAChange) {
  std::filesystem::create_directory(dir_.File("old"));
  std::filesystem::create_directory(dir_.File("new"));
  Write("old/token", "one");
  Write("new/token", "one");
  std::filesystem::create_symlink("old", dir_.File("now"));
  FileStamps stamps({dir_.File("now") + "/token"});
  std::filesystem::create_symlink("new", dir_.File("next"));
  std::filesystem::rename(dir_.File("next"), dir_.File("now"));
  EXPECT_TRUE(stamps.Changed());
}

TEST_F(FileStampsTest, AModeThatIsMendedIsAChange) {
  const std::string a = Write("a", "one");
  ASSERT_EQ(chmod(a.c_str(), 0600), 0);
  FileStamps stamps({a});
  ASSERT_EQ(chmod(a.c_str(), 0640), 0);
  EXPECT_TRUE(stamps.Changed());
}

TEST_F(FileStampsTest, AFileThatGoesOrComesBackIsAChange) {
  const std::string a = Write("a", "one");
  FileStamps stamps({a, dir_.File("none")});
  ASSERT_EQ(unlink(a.c_str()), 0);
  EXPECT_TRUE(stamps.Changed());
  EXPECT_FALSE(stamps.Changed());
  Write("a", "one");
  EXPECT_TRUE(stamps.Changed());
}

}  // namespace
}  // namespace eps
