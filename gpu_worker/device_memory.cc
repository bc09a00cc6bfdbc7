#include "gpu_worker/device_memory.h"

#include "absl/status/status.h"
#include "common/base/memory_room.h"

namespace eps::worker {

absl::StatusOr<int64_t> DefaultDeviceMemoryBytes() {
  const int64_t num_bytes = eps::DefaultDeviceMemoryBytes(FindMemoryRoom(), /*workers=*/1);
  if (num_bytes > 0) return num_bytes;
  return absl::InternalError("/proc/meminfo does not say how much memory there is: give --device-memory");
}

}  // namespace eps::worker
