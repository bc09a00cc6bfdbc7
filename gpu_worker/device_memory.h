#ifndef EPS_GPU_WORKER_DEVICE_MEMORY_H_
#define EPS_GPU_WORKER_DEVICE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace eps::worker {

// The cap of a worker whose user named none: half of the memory that this host, or the
// control group that it runs in, can give now. The plan
// takes no more of it than it can use. Errors: the system's.
absl::StatusOr<int64_t> DefaultDeviceMemoryBytes();

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_MEMORY_H_
