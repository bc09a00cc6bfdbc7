#include "common/base/new_folder.h"

#include <filesystem>
#include <string>
#include <utility>

#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(NewFolderTest, OneThatWasMadeForNothingGoesAgain) {
  const TempDir dir;
  const std::string path = dir.File("a/b");
  {
    ASSERT_OK_AND_ASSIGN(NewFolder made, NewFolder::Make(path));
    EXPECT_TRUE(std::filesystem::is_directory(path));
    const NewFolder moved = std::move(made);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(dir.File("a")));
}

TEST(NewFolderTest, OneThatIsKeptOrHoldsSomethingOrWasThereStays) {
  const TempDir dir;
  const std::string kept = dir.File("kept"), full = dir.File("full"), old = dir.File("old");
  ASSERT_OK(MakeDirs(old));
  {
    ASSERT_OK_AND_ASSIGN(NewFolder one, NewFolder::Make(kept));
    one.Keep();
    ASSERT_OK_AND_ASSIGN(const NewFolder two, NewFolder::Make(full));
    ASSERT_OK(WriteFileAtomically(full + "/file", "text"));
    ASSERT_OK_AND_ASSIGN(const NewFolder three, NewFolder::Make(old));
  }
  for (const std::string& path : {kept, full, old}) EXPECT_TRUE(std::filesystem::is_directory(path)) << path;
}

}  // namespace
}  // namespace eps
