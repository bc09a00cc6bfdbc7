#include "common/telemetry/resident_bytes.h"

#include <stdio.h>
#include <unistd.h>

namespace eps {

int64_t ResidentBytes() {
  int64_t total_pages = 0, resident_pages = 0;
  FILE* file = fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  const int fields = fscanf(file, "%ld %ld", &total_pages, &resident_pages);
  fclose(file);
  return fields == 2 ? resident_pages * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace eps
