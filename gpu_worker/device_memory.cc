#include "gpu_worker/device_memory.h"

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps::worker {

absl::StatusOr<int64_t> DefaultDeviceMemoryBytes() {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/meminfo"));
  const char kField[] = "MemAvailable:";
  const size_t at = text.find(kField);
  if (at == std::string::npos) return absl::InternalError("/proc/meminfo has no MemAvailable");
  return std::strtoll(text.c_str() + at + sizeof(kField) - 1, nullptr, 10) * 1024 / 2;  // it counts in KiB
}

}  // namespace eps::worker
