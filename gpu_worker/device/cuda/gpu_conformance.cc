// The conformance suite on the first GPU of the process. Exits with 77 where there is none that would do.

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "common/spec/graph_use.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

DeviceFactory Gpu(Dtype act, bool tf32 = false) {
  return [=](int64_t arena_bytes) {
    return cuda::NewNvidiaDevice(0,
                                 {.arena_bytes = arena_bytes, .act = act, .tf32 = tf32, .graphs = GraphUse::kAlways});
  };
}

constexpr int64_t kCudnnTile = 64;  // of at least so many positions

// A second device of the same GPU gives the same bits. What the suite multiplies is of bf16's precision, which TF32
// keeps: its bounds are those of fp32.
INSTANTIATE_TEST_SUITE_P(
    Gpu, DeviceConformanceTest,
    ::testing::Values(
        ConformanceParam{"Fp32", Gpu(Dtype::kF32), cuda::CudaKernelSizes(Dtype::kF32), {Gpu(Dtype::kF32)}},
        ConformanceParam{"Tf32", Gpu(Dtype::kF32, true), cuda::CudaKernelSizes(Dtype::kF32), {Gpu(Dtype::kF32, true)}},
        ConformanceParam{"Fp16", Gpu(Dtype::kF16), cuda::CudaKernelSizes(Dtype::kF16), {Gpu(Dtype::kF16)}, kCudnnTile},
        ConformanceParam{
            "Bf16", Gpu(Dtype::kBf16), cuda::CudaKernelSizes(Dtype::kBf16), {Gpu(Dtype::kBf16)}, kCudnnTile}),
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
