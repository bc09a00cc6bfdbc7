#ifndef EPS_GPU_WORKER_DEVICE_BACKEND_H_
#define EPS_GPU_WORKER_DEVICE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/spec/graph_use.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/group/group.h"

namespace eps::worker {

struct DeviceOptions {
  int64_t arena_bytes = 0;
  int threads = 1;
  Dtype wire = Dtype::kF32;      // of the run's weights: what a device computes in follows from it
  bool tf32 = false;             // the run's precision.tf32
  bool plain_attention = false;  // the run's precision.plain_attention
  GraphUse graphs = GraphUse::kAuto;
};

// A kind of device. Errors are the device's own.
struct DeviceBackend {
  // Whether it may pin what it is told to expect copies from, which this process must have mapped writable for that.
  bool pins_weights = false;
  // What the planner must know before there is a device.
  std::function<KernelSizes(Dtype wire)> kernels;
  std::function<absl::StatusOr<std::unique_ptr<Device>>(DeviceOptions)> create;
  // What the device is, before there is a run: starts it without an arena. `compute_dtype` says nothing.
  std::function<absl::StatusOr<DeviceProperties>(int threads)> probe;
  // The cap of each of `sharers` workers on one device whose user named none; the plan takes no more of it than it can
  // use.
  std::function<absl::StatusOr<int64_t>(int sharers)> default_memory_bytes;
  // How workers with such devices form groups; null: they cannot here, as the log says.
  std::function<std::unique_ptr<GroupMaker>()> group_maker;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_BACKEND_H_
