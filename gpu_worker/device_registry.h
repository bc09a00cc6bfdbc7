#ifndef EPS_GPU_WORKER_DEVICE_REGISTRY_H_
#define EPS_GPU_WORKER_DEVICE_REGISTRY_H_

#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/device_backend.h"

namespace eps::worker {

// The only place above the interface where backends have names.
//
// name: "cpu", "cuda", "cuda:I".
// Errors: INVALID_ARGUMENT no such name · UNIMPLEMENTED this build lacks it
absl::StatusOr<DeviceBackend> FindDevice(const std::string& name);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_REGISTRY_H_
