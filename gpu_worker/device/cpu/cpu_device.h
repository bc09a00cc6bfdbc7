#ifndef EPS_GPU_WORKER_DEVICE_CPU_CPU_DEVICE_H_
#define EPS_GPU_WORKER_DEVICE_CPU_CPU_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

struct CpuDeviceOptions {
  int64_t arena_bytes = 0;  // the user's cap, >= 0; reserved at once, and touched as it is used
  int threads = 1;          // that compute, [1, 1024]; the streams' own threads (in, out) mostly wait
};

// The processor as a device: the arena is one mapping of the host's memory, the streams are
// threads, and kernels run on a fixed pool of `threads` threads.
//
// Errors:  INVALID_ARGUMENT an option out of range · RESOURCE_EXHAUSTED the arena cannot be mapped
// ·
//          FAILED_PRECONDITION a processor without FMA
// Threads: as Device; several devices may live in one process
absl::StatusOr<std::unique_ptr<Device>> NewCpuDevice(CpuDeviceOptions options);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_CPU_CPU_DEVICE_H_
