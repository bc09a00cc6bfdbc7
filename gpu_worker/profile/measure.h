#ifndef EPS_GPU_WORKER_PROFILE_MEASURE_H_
#define EPS_GPU_WORKER_PROFILE_MEASURE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/plan/profile.h"

namespace eps::worker {

struct MeasureRequest {
  const RunConfig* run = nullptr;  // whose layers are measured, in its micro-batches
  const DeviceBackend* backend = nullptr;
  std::string device = "cpu";
  int threads = 1;
  double seconds = 0.15;  // of each figure, at least; a large layer takes five runs of it and more
  // What is measured next, and how much of the whole is done, from 0 to 1.
  std::function<void(const std::string& what, double share)> on_progress = [](const std::string&, double) {};
};

// Runs the kernels of each kind of layer of the run, and copies, alone and beside each other, on the device itself. Takes
// some fifty times `seconds`, and as much device memory as the smallest plan and slots for inner activations, which
// are more than caches hold. The daemon's updates are stood for by a loop over as many bytes of memory in as many threads
// as the host has cores: what they are bound by.
//
// Nobody else should work on the machine. On two idle cores of a virtual one layers repeat within 5%; the speed of compute
// beside a copy was between 0.16 and 0.67 in three measurements.
// Errors: the planner's, where the run fits no device · RESOURCE_EXHAUSTED the device has no memory for it; where the
//         host has none it is INTERNAL · the device's own
absl::StatusOr<Profile> MeasureProfile(const MeasureRequest& request);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_MEASURE_H_
