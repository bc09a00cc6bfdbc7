// The conformance suite on the first GPU of the process. Exits with 77 where there is none that would do.

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

DeviceFactory Gpu(Dtype act) {
  return [act](int64_t arena_bytes) { return cuda::NewNvidiaDevice(0, {.arena_bytes = arena_bytes, .act = act}); };
}

// A second device of the same GPU gives the same bits.
INSTANTIATE_TEST_SUITE_P(
    Gpu, DeviceConformanceTest,
    ::testing::Values(
        ConformanceParam{"Fp32", Gpu(Dtype::kF32), cuda::CudaKernelSizes(Dtype::kF32), {Gpu(Dtype::kF32)}},
        ConformanceParam{"Bf16", Gpu(Dtype::kBf16), cuda::CudaKernelSizes(Dtype::kBf16), {Gpu(Dtype::kBf16)}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const absl::Status gpu = eps::worker::cuda::ProbeNvidiaGpu(0).status();
  if (!gpu.ok()) {
    std::fprintf(stderr, "cannot run here: %s\n", std::string(gpu.message()).c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
