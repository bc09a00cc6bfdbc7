#ifndef EPS_COMMON_BASE_MEMORY_ROOM_H_
#define EPS_COMMON_BASE_MEMORY_ROOM_H_

#include <cstdint>
#include <limits>
#include <string>

#include "common/base/control_groups.h"

namespace eps {

// What this process and those beside it may still take.
struct MemoryRoom {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  int64_t total_bytes = 0;      // of the machine; 0: not known
  int64_t available_bytes = 0;  // what the machine and every control group around this process can give now

  int64_t swap_bytes = 0;  // of the machine, beside that

  // The control group that leaves least, its limit and the file that says it; kNoLimit, "": none has a limit.
  int64_t group_room_bytes = kNoLimit;
  int64_t group_limit_bytes = kNoLimit;
  std::string group_file;
  // The smallest limit of all, which may be another group's, as that has other processes.
  int64_t smallest_limit_bytes = kNoLimit;
  std::string smallest_limit_file;

  bool limited_by_group = false;  // it leaves less than the machine has
};

// MemAvailable of /proc/meminfo, and of every control group (cgroup v2 or v1) its limit less what it holds; cached files
// are given up for who needs memory, and count as free in both.
MemoryRoom FindMemoryRoom(const TextReader& read);
MemoryRoom FindMemoryRoom();  // of this process

// What can be had at most, for people: "its control group allows 300.0 MiB (/sys/fs/cgroup/a/memory.max)", where that is
// less than the machine has, or "this machine has 31.2 GiB"; "": not known.
std::string MostMemoryText(const MemoryRoom& room);

// The cap of each of `workers` workers on the cpu device whose user named none: together half of the room, the other
// half being the daemon's, which holds the model. At least 1; 0 if the room is not known.
int64_t DefaultDeviceMemoryBytes(const MemoryRoom& room, int workers);

}  // namespace eps

#endif  // EPS_COMMON_BASE_MEMORY_ROOM_H_
