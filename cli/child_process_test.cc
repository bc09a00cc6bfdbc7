#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/memory_room.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

ChildProcess RunShell(const TempDir& dir, const std::string& script, bool reads_signals = false) {
  auto child = Spawn({.name = "sh 1",
                      .program = "/bin/sh",
                      .arguments = {"-c", script},
                      .log_path = dir.File("log"),
                      .signal_when_parent_dies = 0,
                      .reads_signals = reads_signals});
  EXPECT_OK(child.status());
  return *child;
}

void WaitForEnd(ChildProcess& child) {
  while (child.running()) {
    Reap({&child});
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST(ChildProcessTest, AnExitCodeAndTheLastWordsAreKept) {
  TempDir dir;
  ChildProcess child = RunShell(dir, "echo 'sh: first'; echo 'sh: last' >&2; echo other; exit 3");
  WaitForEnd(child);
  EXPECT_EQ(EndOf(child), "exit code 3");
  EXPECT_EQ(LastWords(child), "sh: last");
  EXPECT_FALSE(child.ended_well());
}

TEST(ChildProcessTest, WhatThisProgramIgnoresAChildDoesNotAndMayReadLater) {
  TempDir dir;
  signal(SIGHUP, SIG_IGN);  // as nohup has it
  ChildProcess hung_up = RunShell(dir, "kill -HUP $$; exit 5");
  signal(SIGHUP, SIG_DFL);
  WaitForEnd(hung_up);
  EXPECT_EQ(EndOf(hung_up), "signal 1 (Hangup)");
  ChildProcess reads = RunShell(dir, "kill -HUP $$; kill -TERM $$; exit 5", /*reads_signals=*/true);
  WaitForEnd(reads);
  EXPECT_EQ(EndOf(reads), "exit code 5");
}

TEST(ChildProcessTest, TheWordsOfAnEarlierProcessInTheSameLogAreNotTheLastOnes) {
  TempDir dir;
  ChildProcess first = RunShell(dir, "echo 'sh: the first'; exit 1");
  WaitForEnd(first);
  ChildProcess killed = RunShell(dir, "kill -9 $$");
  WaitForEnd(killed);
  EXPECT_EQ(EndOf(killed), "signal 9 (Killed)");
  EXPECT_EQ(LastWords(killed), "");
  EXPECT_EQ(LastWords(first), "sh: the first");
  ChildProcess third = RunShell(dir, "echo 'sh: the third'");
  WaitForEnd(third);
  EXPECT_EQ(LastWords(third), "sh: the third");
}

TEST(ChildProcessTest, ALogThatLacksTheLastWordsIsNamed) {
  TempDir dir;
  ChildProcess silent = RunShell(dir, "exit 1");
  WaitForEnd(silent);
  EXPECT_THAT(LogTrouble(silent), testing::HasSubstr("could not be written to the end"));
  EXPECT_THAT(LogTrouble(silent), testing::HasSubstr("its disk"));
  ChildProcess said = RunShell(dir, "echo 'sh: why'; exit 1");
  WaitForEnd(said);
  EXPECT_EQ(LogTrouble(said), "");
  ChildProcess well = RunShell(dir, "exit 0");
  WaitForEnd(well);
  EXPECT_EQ(LogTrouble(well), "");
  ChildProcess cut = RunShell(dir, "printf 'sh: wh'; exit 1");
  WaitForEnd(cut);
  EXPECT_EQ(LastWords(cut), "sh: wh");
  EXPECT_THAT(LogTrouble(cut), testing::HasSubstr("could not be written to the end"));
  ChildProcess killed = RunShell(dir, "printf half; kill -9 $$");
  WaitForEnd(killed);
  EXPECT_EQ(LogTrouble(killed), "");
}

TEST(ChildProcessTest, ADeathBySignalIsNamed) {
  TempDir dir;
  ChildProcess child = RunShell(dir, "sleep 100");
  EXPECT_EQ(EndOf(child), "still running");
  kill(child.pid, SIGKILL);
  WaitForEnd(child);
  EXPECT_EQ(EndOf(child), "signal 9 (Killed)");
}

TEST(ChildProcessTest, OfOneThatWasKilledTheMemoryThatItCouldHaveIsSaid) {
  TempDir dir;
  const MemoryRoom room = {.total_bytes = int64_t{2} << 30,
                           .smallest_limit_bytes = 300 << 20,
                           .smallest_limit_file = "/sys/fs/cgroup/a/memory.max"};
  ChildProcess child = RunShell(dir, "kill -9 $$");
  EXPECT_EQ(WhyKilled(child, room), "");
  WaitForEnd(child);
  EXPECT_EQ(WhyKilled(child, room),
            ", perhaps for want of memory: its control group allows 300.0 MiB (/sys/fs/cgroup/a/memory.max)");
  EXPECT_EQ(WhyKilled(child, {}), ", perhaps for want of memory");
  for (const char* other : {"kill -15 $$", "exit 9"}) {
    child = RunShell(dir, other);
    WaitForEnd(child);
    EXPECT_EQ(WhyKilled(child, room), "") << other;
  }
}

TEST(ChildProcessTest, AChildIsOutsideOurProcessGroup) {
  TempDir dir;
  ChildProcess child = RunShell(dir, "sleep 100");
  EXPECT_NE(getpgid(child.pid), getpgrp());
  kill(child.pid, SIGKILL);
  WaitForEnd(child);
}

TEST(ChildProcessTest, WhatThisProgramHasOpenIsNoneOfAChilds) {
  TempDir dir;
  const int open_here = fcntl(STDERR_FILENO, F_DUPFD, 100);  // as of an ifstream, or of the shell: without FD_CLOEXEC
  ASSERT_GE(open_here, 100);
  ChildProcess child = RunShell(dir, absl::StrCat("test ! -e /proc/$$/fd/", open_here, " && echo log"));
  WaitForEnd(child);
  EXPECT_EQ(EndOf(child), "exit code 0");
  close(open_here);
}

TEST(ChildProcessTest, AProgramIsRunToItsEnd) {
  ASSERT_OK_AND_ASSIGN(const ProgramEnd end, RunProgram("/bin/sh", {"-c", "echo 'sh: why'; exit 2"}));
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.last_words, "sh: why");
  EXPECT_THAT(RunProgram("/bin/sh", {"-c", "kill -9 $$"}), StatusIs(absl::StatusCode::kAborted, "signal 9"));
}

TEST(RunProgramTest, AProgramIsKilledWhenItIsCancelled) {
  int asked = 0;
  const auto at_third = [&asked](absl::Duration) { return ++asked == 3; };
  EXPECT_THAT(RunProgram("/bin/sh", {"-c", "sleep 1000"}, {.cancelled_within = at_third, .on_line = {}}),
              StatusIs(absl::StatusCode::kCancelled, "sh"));
  EXPECT_EQ(asked, 3);
  const auto never = [](absl::Duration time) {
    absl::SleepFor(time);
    return false;
  };
  ASSERT_OK_AND_ASSIGN(const ProgramEnd end,
                       RunProgram("/bin/sh", {"-c", "exit 4"}, {.cancelled_within = never, .on_line = {}}));
  EXPECT_EQ(end.exit_code, 4);
}

TEST(RunProgramTest, EachWholeLineIsToldWhileTheProgramRuns) {
  TempDir dir;
  const std::string seen = dir.File("seen");
  std::vector<std::string> lines;
  const auto on_line = [&](const std::string& line) {
    lines.push_back(line);
    std::ofstream(seen) << "";  // for which the program waits
  };
  const std::string script = absl::StrCat("echo one; until [ -e ", seen,
                                          " ]; do sleep 0.01; done; printf 'tw'; sleep 0.2; echo o; printf end");
  ASSERT_OK_AND_ASSIGN(const ProgramEnd end,
                       RunProgram("/bin/sh", {"-c", script}, {.cancelled_within = {}, .on_line = on_line}));
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(lines, ::testing::ElementsAre("one", "two"));
}

TEST(ChildProcessTest, AProgramThatIsNotThereIsNamed) {
  TempDir dir;
  EXPECT_THAT(Spawn({.name = "x", .program = dir.File("nothing"), .arguments = {}, .log_path = dir.File("log")}),
              StatusIs(absl::StatusCode::kNotFound, "nothing"));
}

}  // namespace
}  // namespace eps::cli
