#include "gpu_worker/profile/kept_profile.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/environment_variable.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/profile/profile_file.h"

namespace eps::worker {
namespace {

class KeptProfileTest : public testing::Test {
 protected:
  std::string Keep(const std::string& text) {
    const std::string path = KeptProfilePath("cpu", 2, "widest");
    EXPECT_OK(MakeDirs(DirName(path)));
    EXPECT_OK(WriteFileAtomically(path, text));
    return path;
  }

  TempDir folder_;
  EnvironmentVariable home_{"HOME", "/some/home"};
  EnvironmentVariable cache_{"XDG_CACHE_HOME", folder_.path().c_str()};
};

TEST_F(KeptProfileTest, EachDeviceAndNumberOfThreadsHasItsOwn) {
  std::vector<std::string> paths = {KeptProfilePath("cpu", 1, "widest"), KeptProfilePath("cpu", 2, "widest"),
                                    KeptProfilePath("cuda:0", 2, "widest"), KeptProfilePath("cuda:1", 2, "widest"),
                                    KeptProfilePath("cpu", 2, "avx2")};
  for (const std::string& path : paths) EXPECT_EQ(path.rfind(folder_.path() + "/eps/profiles/", 0), 0u) << path;
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(std::unique(paths.begin(), paths.end()), paths.end());
  EXPECT_EQ(KeptProfilePath("cuda", 2, "widest"), KeptProfilePath("cuda:0", 2, "widest"));
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

TEST_F(KeptProfileTest, WhatIsOfAnotherKindOfDeviceIsPassedOverAndRefusedWhereItIsNamed) {
  const std::string path = Keep(ProfileToJson(NominalProfile("cuda:1")));
  EXPECT_EQ(ChooseProfile("", "cpu", 2, "widest"), kNominalProfile);
  EXPECT_THAT(LoadProfile(path, "cpu"), StatusIs(absl::StatusCode::kInvalidArgument, "device: \"cuda"));
  EXPECT_OK(LoadProfile(path, "cuda:0").status());
  EXPECT_OK(LoadProfile(kNominalProfile, "cpu").status());
}

TEST(AddLayersTest, LayersOfEarlierRunsStayAsLongAsTheHardwareIsTheSame) {
  const auto profile_of = [](int64_t micro_batch, double seconds) {
    Profile profile = NominalProfile("cpu");
    for (LayerTimes& times : profile.layers) {
      times.shape.B = micro_batch;
      times.forward_seconds = seconds;
    }
    return profile;
  };
  const auto shown = [](const Profile& profile) {
    std::vector<std::pair<int64_t, double>> blocks;
    for (const LayerTimes& times : profile.layers) {
      if (times.kind == LayerKind::kBlock) blocks.emplace_back(times.shape.B, times.forward_seconds);
    }
    return blocks;
  };
  Profile first = profile_of(1, 0.1), second = profile_of(2, 0.2), again = profile_of(1, 0.3);
  EXPECT_TRUE(AddLayersOf(first, second));
  EXPECT_EQ(shown(second), (std::vector<std::pair<int64_t, double>>{{2, 0.2}, {1, 0.1}}));
  EXPECT_TRUE(AddLayersOf(second, again));
  EXPECT_EQ(shown(again), (std::vector<std::pair<int64_t, double>>{{1, 0.3}, {2, 0.2}}));
  Profile same = profile_of(1, 0.4);
  EXPECT_FALSE(AddLayersOf(first, same));
  Profile other = profile_of(3, 0.4);
  other.hardware = "another GPU";
  EXPECT_FALSE(AddLayersOf(first, other));
  other = profile_of(3, 0.4);
  other.threads += 1;
  EXPECT_FALSE(AddLayersOf(first, other));
  EXPECT_EQ(shown(other).size(), 1);
  // Not without end; what was measured last stays longest.
  Profile many = profile_of(100, 1);
  for (int64_t micro_batch = 101; micro_batch < 140; ++micro_batch) {
    Profile next = profile_of(micro_batch, 1);
    EXPECT_TRUE(AddLayersOf(many, next));
    many = next;
  }
  EXPECT_EQ(many.layers.size(), 48);
  EXPECT_EQ(shown(many).back().first, 139 - 15);
}

}  // namespace
}  // namespace eps::worker
