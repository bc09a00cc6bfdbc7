#include "gpu_worker/profile/kept_profile.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/profile/profile_file.h"

namespace eps::worker {
namespace {

// Sets a variable of the environment, or with null unsets it, and has it as it was at the end.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    was_set_ = before != nullptr;
    if (was_set_) before_ = before;
    Set(value);
  }
  ~Variable() { Set(was_set_ ? before_.c_str() : nullptr); }
  void Set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }

 private:
  const char* const name_;
  bool was_set_ = false;
  std::string before_;
};

class KeptProfileTest : public testing::Test {
 protected:
  std::string Keep(const std::string& text) {
    const std::string path = KeptProfilePath("cpu", 2, "widest");
    EXPECT_OK(MakeDirs(DirName(path)));
    EXPECT_OK(WriteFileAtomically(path, text));
    return path;
  }

  TempDir folder_;
  Variable home_{"HOME", "/some/home"};
  Variable cache_{"XDG_CACHE_HOME", folder_.path().c_str()};
};

TEST_F(KeptProfileTest, EachDeviceAndNumberOfThreadsHasItsOwn) {
  std::vector<std::string> paths = {KeptProfilePath("cpu", 1, "widest"), KeptProfilePath("cpu", 2, "widest"),
                                    KeptProfilePath("cuda:0", 2, "widest"), KeptProfilePath("cuda:1", 2, "widest"),
                                    KeptProfilePath("cpu", 2, "avx2")};
  for (const std::string& path : paths) EXPECT_EQ(path.rfind(folder_.path() + "/eps/profiles/", 0), 0u) << path;
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(std::unique(paths.begin(), paths.end()), paths.end());
}

TEST_F(KeptProfileTest, AFolderThatIsNotAbsoluteDoesNotCount) {
  cache_.Set("relative");
  EXPECT_EQ(KeptProfilePath("cpu", 1, "widest").rfind("/some/home/.cache/eps/profiles/", 0), 0u);
  home_.Set(nullptr);
  EXPECT_EQ(KeptProfilePath("cpu", 1, "widest"), "");
  EXPECT_EQ(ChooseProfile("", "cpu", 1, "widest"), kNominalProfile);
}

TEST_F(KeptProfileTest, WhatIsToldComesFirstThenWhatIsKept) {
  EXPECT_EQ(ChooseProfile("", "cpu", 2, "widest"), kNominalProfile);
  const std::string path = Keep(ProfileToJson(NominalProfile("cpu")));
  EXPECT_EQ(ChooseProfile("", "cpu", 2, "widest"), path);
  EXPECT_EQ(ChooseProfile("", "cpu", 3, "widest"), kNominalProfile);
  EXPECT_EQ(ChooseProfile("", "cpu", 2, "avx2"), kNominalProfile);
  EXPECT_EQ(ChooseProfile("", "cuda", 2, "widest"), kNominalProfile);
  EXPECT_EQ(ChooseProfile("other.json", "cpu", 2, "widest"), "other.json");
  EXPECT_EQ(ChooseProfile("nominal", "cpu", 2, "widest"), kNominalProfile);
}

TEST_F(KeptProfileTest, WhatIsNoProfileIsPassedOver) {
  for (const char* text : {"", "no profile", "{}"}) {
    Keep(text);
    EXPECT_EQ(ChooseProfile("", "cpu", 2, "widest"), kNominalProfile) << text;
  }
}

}  // namespace
}  // namespace eps::worker
