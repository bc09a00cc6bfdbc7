#include "gpu_worker/profile/update_loop.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kAmple = int64_t{1} << 40;

// So many processors with a cache of so many KiB for each two of them.
TextReader Machine(int cpus, const std::string& size) {
  std::map<std::string, std::string> files;
  for (int cpu = 0; cpu < cpus; ++cpu) {
    const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/cache/index3/");
    files[folder + "shared_cpu_list"] = absl::StrCat(cpu / 2 * 2, "-", cpu / 2 * 2 + 1, "\n");
    files[folder + "size"] = size;
  }
  return [files](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(UpdateStateBytesTest, IsSixTimesTheCachesOfAllSocketsAndNotMoreThanEnough) {
  EXPECT_EQ(UpdateStateBytes(Machine(2, "131072K\n"), kAmple), 6 * 128 * kMiB);
  EXPECT_EQ(UpdateStateBytes(Machine(4, "65536K\n"), kAmple), 6 * 2 * 64 * kMiB);
  EXPECT_EQ(UpdateStateBytes(Machine(2, "491520K\n"), kAmple), 2048 * kMiB);
  EXPECT_EQ(UpdateStateBytes(Machine(16, "262144K\n"), kAmple), 2 * 8 * 256 * kMiB);
}

TEST(UpdateStateBytesTest, IsEnoughWhereNoneIsKnownAndNeverMuchOfTheRoom) {
  EXPECT_EQ(UpdateStateBytes(Machine(0, ""), kAmple), 2048 * kMiB);
  EXPECT_EQ(UpdateStateBytes(Machine(2, "much\n"), kAmple), 2048 * kMiB);
  EXPECT_EQ(UpdateStateBytes(Machine(2, "491520K\n"), 4096 * kMiB), 512 * kMiB);
  EXPECT_EQ(UpdateStateBytes(Machine(2, "16384K\n"), kAmple), 128 * kMiB);  // a window
  EXPECT_EQ(UpdateStateBytes(Machine(2, "491520K\n"), 0), 128 * kMiB);
}

TEST(UpdateLoopTest, GoesThroughWindowsOfAnyNumberByAnyThreads) {
  for (const int threads : {1, 3}) {
    for (const int64_t state_bytes : {0 * kMiB, 128 * kMiB, 300 * kMiB}) {
      ASSERT_OK_AND_ASSIGN(UpdateLoop loop, UpdateLoop::New(threads, state_bytes));
      for (int i = 0; i < 3; ++i) EXPECT_OK(loop.Run(2));  // around, and into the next one
    }
  }
}

}  // namespace
}  // namespace eps::worker
