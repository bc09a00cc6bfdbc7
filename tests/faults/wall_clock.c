// Preloaded into programs under test: while the file that EPS_CLOCK_BACK names is there, the wall clock is an hour behind.
// A clock that is set back, without setting one.

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (failed || clock != CLOCK_REALTIME) return failed;
  const char* back = getenv("EPS_CLOCK_BACK");
  if (back != NULL && access(back, F_OK) == 0) now->tv_sec -= 3600;
  return 0;
}
