#ifndef EPS_GPU_WORKER_DEVICE_MEMORY_H_
#define EPS_GPU_WORKER_DEVICE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace eps::worker {

// The cap of a worker whose user named none: half of the room of this host and of the control groups around it, as for
// an only worker. Who starts several (eps train) divides it, and names each worker's part. The plan takes no more of it
// than it can use. Errors: INTERNAL the system does not say
absl::StatusOr<int64_t> DefaultDeviceMemoryBytes();

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_MEMORY_H_
