#include "common/base/program_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace eps {
namespace {

// Whether who reads the output may go away before its end: `| head`.
bool IsRead() {
  struct stat output = {};
  return fstat(STDOUT_FILENO, &output) == 0 && (S_ISFIFO(output.st_mode) || S_ISSOCK(output.st_mode));
}

// Of an earlier write that failed stdio keeps no reason; one of nothing tells it where it still holds, and changes nothing.
const char* ReasonOfEarlierError() {
  return write(STDOUT_FILENO, "", 0) < 0 ? std::strerror(errno) : "an earlier write failed";
}

}  // namespace

void HoldStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // It gets the lowest number that is free, this one. Open for the other direction, as nothing is to be read or written.
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

bool FlushOutput(const char* program) {
  errno = 0;
  const bool is_flushed = std::fflush(stdout) == 0;
  const int error_number = errno;
  if (is_flushed && std::ferror(stdout) == 0) return true;
  if (error_number == EPIPE || (is_flushed && IsRead())) return true;
  const char* reason = is_flushed ? ReasonOfEarlierError() : std::strerror(error_number);
  std::fprintf(stderr, "%s: cannot write all of the output: %s\n", program, reason);
  return false;
}

}  // namespace eps
