#include "common/base/program_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

// In a process of its own, whose standard output it changes.
[[noreturn]] void End(bool is_told) { _exit(is_told ? 0 : 1); }

void PrintTo(const char* path) {
  if (std::freopen(path, "w", stdout) == nullptr) _exit(2);
  std::printf("said\n");
}

TEST(ProgramOutputTest, WhatIsPrintedIsOut) {
  EXPECT_EXIT(
      {
        PrintTo("/dev/null");
        End(FlushOutput("eps"));
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(ProgramOutputTest, AFullDeviceIsNamed) {
  EXPECT_EXIT(
      {
        PrintTo("/dev/full");
        End(FlushOutput("eps_server"));
      },
      testing::ExitedWithCode(1), "^eps_server: cannot write all of the output: No space left on device\n$");
}

TEST(ProgramOutputTest, AnEarlierWriteThatFailedHasItsReasonToo) {
  EXPECT_EXIT(
      {
        PrintTo("/dev/full");
        std::fflush(stdout);
        End(FlushOutput("eps"));
      },
      testing::ExitedWithCode(1), "^eps: cannot write all of the output: No space left on device\n$");
}

TEST(ProgramOutputTest, WithoutAReaderNothingIsWrong) {
  EXPECT_EXIT(
      {
        std::signal(SIGPIPE, SIG_IGN);
        int ends[2];
        if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) _exit(2);
        close(ends[0]);
        std::printf("said\n");
        End(FlushOutput("eps"));
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(ProgramOutputTest, AFileIsNotOpenedInPlaceOfAnOutputThatWasClosed) {
  EXPECT_EXIT(
      {
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        HoldStandardStreams();
        if (open("/dev/null", O_WRONLY) <= STDERR_FILENO) _exit(2);
        std::printf("said\n");
        End(FlushOutput("eps"));
      },
      testing::ExitedWithCode(1), "^eps: cannot write all of the output: Bad file descriptor\n$");
}

}  // namespace
}  // namespace eps
