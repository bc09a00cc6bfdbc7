#ifndef EPS_GPU_WORKER_DEVICE_REGISTRY_H_
#define EPS_GPU_WORKER_DEVICE_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

struct DeviceOptions {
  int64_t arena_bytes = 0;
  int threads = 1;
};

// A kind of device that this build knows. The only place above the interface where backends have names.
struct DeviceBackend {
  KernelSizes kernels;  // what the planner must know before there is a device
  std::function<absl::StatusOr<std::unique_ptr<Device>>(DeviceOptions)> create;
};

// name: "cpu", "cuda", "cuda:I".
// Errors: INVALID_ARGUMENT no such name · UNIMPLEMENTED this build lacks it
absl::StatusOr<DeviceBackend> FindDevice(const std::string& name);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_REGISTRY_H_
