#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_EMULATED_DEVICE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_EMULATED_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {

struct EmulatedDeviceOptions {
  int64_t arena_bytes = 0;
  Dtype act = Dtype::kBf16;
  GridOrder order = GridOrder::kForward;
};

// The kernels of the cuda device on the processor, for tests: their sources, run by GridRunner, with plain loops in
// place of the library of matrix products. Streams and the arena are threads and host memory, as the cpu device has.
//
// Errors: RESOURCE_EXHAUSTED no memory for the arena
absl::StatusOr<std::unique_ptr<Device>> NewEmulatedCudaDevice(EmulatedDeviceOptions options);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_EMULATED_DEVICE_H_
