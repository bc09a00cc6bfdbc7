#ifndef EPS_COMMON_BASE_MALLOC_SETTINGS_H_
#define EPS_COMMON_BASE_MALLOC_SETTINGS_H_

#include <malloc.h>

namespace eps {

// For programs that move large messages: call first thing in main.
//
// gRPC allocates the memory of each message it receives and frees it soon after. By default glibc gives such blocks back
// to the system at once, and every message pays for fresh zeroed pages again: a third of a pull's time when measured
// (bench/pull_bench, 2 cores, November 2026). And it keeps an arena for each thread, of which each stays as large as it
// ever was. Few arenas, that keep a little, are faster and smaller.
inline void SetUpMalloc() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);   // blocks up to this come from the arenas; fixed, for by itself it grows
  mallopt(M_TRIM_THRESHOLD, 16 << 20);  // what an arena keeps free
  mallopt(M_TOP_PAD, 1 << 20);
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_MALLOC_SETTINGS_H_
