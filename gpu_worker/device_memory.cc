#include "gpu_worker/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::worker {

namespace {

// What this process's control group may still take (cgroup v2), "max" and no group at all being no limit.
int64_t ControlGroupRoomBytes() {
  constexpr char kFolder[] = "/sys/fs/cgroup";
  const absl::StatusOr<std::string> group = ReadFile("/proc/self/cgroup");
  if (!group.ok() || group->rfind("0::", 0) != 0) return std::numeric_limits<int64_t>::max();
  const std::string name = group->substr(3, group->find('\n') - 3);
  const absl::StatusOr<std::string> limit = ReadFile(absl::StrCat(kFolder, name, "/memory.max"));
  const absl::StatusOr<std::string> used = ReadFile(absl::StrCat(kFolder, name, "/memory.current"));
  if (!limit.ok() || !used.ok() || limit->rfind("max", 0) == 0) return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(0, std::strtoll(limit->c_str(), nullptr, 10) - std::strtoll(used->c_str(), nullptr, 10));
}

}  // namespace

absl::StatusOr<int64_t> DefaultDeviceMemoryBytes() {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/meminfo"));
  const char kField[] = "MemAvailable:";
  const size_t at = text.find(kField);
  if (at == std::string::npos) return absl::InternalError("/proc/meminfo has no MemAvailable");
  const int64_t available_bytes = std::strtoll(text.c_str() + at + sizeof(kField) - 1, nullptr, 10) * 1024;  // in KiB
  return std::min(available_bytes, ControlGroupRoomBytes()) / 2;
}

}  // namespace eps::worker
