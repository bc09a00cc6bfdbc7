#include "common/base/control_groups.h"

#include <sched.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;

class ControlGroupsTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> files_ = {{"/proc/self/cgroup", "12:memory:/old\n0::/a/b\n"}};
  const TextReader reader_ = [this](const std::string& path) {
    const auto it = files_.find(path);
    return it == files_.end() ? std::nullopt : std::optional(it->second);
  };
};

TEST_F(ControlGroupsTest, AllAroundTheProcessInnermostFirst) {
  EXPECT_THAT(ControlGroupFolders(reader_), ElementsAre("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"));
}

TEST_F(ControlGroupsTest, WhereNothingIsSaidThereIsTheOutermostAlone) {
  for (const char* text : {"", "0::strange\n0::\n", "0::/\n", "3:cpu:/old\n"}) {
    files_["/proc/self/cgroup"] = text;
    EXPECT_THAT(ControlGroupFolders(reader_), ElementsAre("/sys/fs/cgroup")) << text;
  }
  files_.clear();
  EXPECT_THAT(ControlGroupFolders(reader_), ElementsAre("/sys/fs/cgroup"));
}

TEST_F(ControlGroupsTest, OfTheFirstVersionEachControllerHasGroupsOfItsOwn) {
  files_["/proc/self/cgroup"] = "9:cpu,cpuacct:/c\n4:memory:/old/x\n1:name=systemd:/\n0::/a\n";
  EXPECT_THAT(ControlGroupFolders(reader_, "memory"),
              ElementsAre("/sys/fs/cgroup/memory/old/x", "/sys/fs/cgroup/memory/old", "/sys/fs/cgroup/memory"));
  EXPECT_THAT(ControlGroupFolders(reader_, "cpuacct"),
              ElementsAre("/sys/fs/cgroup/cpuacct/c", "/sys/fs/cgroup/cpuacct"));
  EXPECT_THAT(ControlGroupFolders(reader_, "pids"), ElementsAre("/sys/fs/cgroup/pids"));
  EXPECT_THAT(ControlGroupFolders(reader_), ElementsAre("/sys/fs/cgroup/a", "/sys/fs/cgroup"));
}

TEST_F(ControlGroupsTest, TheTightestLimitOfTimeCounts) {
  EXPECT_EQ(ControlGroupCores(reader_), 0);
  files_["/sys/fs/cgroup/a/b/cpu.max"] = "max 100000\n";
  EXPECT_EQ(ControlGroupCores(reader_), 0);
  files_["/sys/fs/cgroup/a/cpu.max"] = "250000 100000\n";
  EXPECT_EQ(ControlGroupCores(reader_), 2.5);
  files_["/sys/fs/cgroup/cpu.max"] = "800000 100000\n";
  EXPECT_EQ(ControlGroupCores(reader_), 2.5);
  files_["/sys/fs/cgroup/a/b/cpu.max"] = "25000 50000\n";
  EXPECT_EQ(ControlGroupCores(reader_), 0.5);
}

TEST_F(ControlGroupsTest, WhatIsNoLimitIsNone) {
  for (const char* text : {"", "100000", "0 100000", "-1 100000", "100000 0", "100000 x", "1e5 1e5", "5 100000 7"}) {
    files_["/sys/fs/cgroup/cpu.max"] = text;
    EXPECT_EQ(ControlGroupCores(reader_), 0) << text;
  }
}

TEST_F(ControlGroupsTest, ThreadsAreAsManyAsCoresAndNoMoreThanThereIsTimeForAtLeastOne) {
  EXPECT_EQ(UsableCores(reader_, 8), 8);
  const std::pair<const char*, int> cases[] = {
      {"250000 100000", 2}, {"50000 100000", 1}, {"900000 100000", 8}, {"800000 100000", 8}, {"799999 100000", 7}};
  for (const auto& [limit, threads] : cases) {
    files_["/sys/fs/cgroup/a/cpu.max"] = limit;
    EXPECT_EQ(UsableCores(reader_, 8), threads) << limit;
  }
}

TEST(SchedulableCoresTest, AThreadThatMayRunOnOneCoreHasOne) {
  EXPECT_GE(UsableCores(), 1);
  int cores = 0;
  std::thread pinned([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    cores = SchedulableCores();
  });
  pinned.join();
  EXPECT_EQ(cores, 1);
}

}  // namespace
}  // namespace eps
