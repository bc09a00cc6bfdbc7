#ifndef EPS_GPU_WORKER_DEVICE_REGISTRY_H_
#define EPS_GPU_WORKER_DEVICE_REGISTRY_H_

#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/device_backend.h"

namespace eps::worker {

// What one of several workers of a host takes.
struct DevicePlace {
  std::string device;
  int sharers = 1;  // workers on that device, this one included
};

// name:    "cpu", "cuda", "cuda:I". "cuda" is a GPU of each worker's own as far as they reach: worker `turn` of `workers`,
//          from 0, has GPU `turn` modulo those that this process sees. The others are one device for all.
// Errors:  none that FindDevice does not tell: a name that means nothing, and "cuda" where there is no GPU, stay as they are
DevicePlace FindPlace(const std::string& name, int turn, int workers);

// The only place above the interface where backends have names.
//
// name: "cpu", "cuda", "cuda:I".
// Errors: INVALID_ARGUMENT no such name · UNIMPLEMENTED this build lacks it
absl::StatusOr<DeviceBackend> FindDevice(const std::string& name);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_REGISTRY_H_
