#include "gpu_worker/device/cuda/cuda_device.h"

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using cuda::CudaKernelSizes;
using cuda::GridOrder;

DeviceFactory Emulated(Dtype act, GridOrder order) {
  return [act, order](int64_t arena_bytes) {
    return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = act}, cuda::NewEmulatedRuntime(order));
  };
}

// The same bits in the other order of threads and blocks: nothing hangs on a barrier that is missing.
INSTANTIATE_TEST_SUITE_P(CudaKernels, DeviceConformanceTest,
                         ::testing::Values(ConformanceParam{"Fp32",
                                                            Emulated(Dtype::kF32, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kF32),
                                                            {Emulated(Dtype::kF32, GridOrder::kBackward)}},
                                           ConformanceParam{"Bf16",
                                                            Emulated(Dtype::kBf16, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kBf16),
                                                            {Emulated(Dtype::kBf16, GridOrder::kBackward)}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace eps::worker
