#include "gpu_worker/device/cuda/cuda_device.h"

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
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

DeviceFactory Emulated(Dtype act, GridOrder order, bool has_fused_attention = false) {
  return [=](int64_t arena_bytes) {
    return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = act},
                               cuda::NewEmulatedRuntime(order, {.has_fused_attention = has_fused_attention}));
  };
}

// The same bits in the other order of threads and blocks: nothing hangs on a barrier that is missing. With fused
// attention it is the library's graph where it is taken, and the plain kernel elsewhere.
INSTANTIATE_TEST_SUITE_P(CudaKernels, DeviceConformanceTest,
                         ::testing::Values(ConformanceParam{"Fp32",
                                                            Emulated(Dtype::kF32, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kF32),
                                                            {Emulated(Dtype::kF32, GridOrder::kBackward)}},
                                           ConformanceParam{"Bf16",
                                                            Emulated(Dtype::kBf16, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kBf16),
                                                            {Emulated(Dtype::kBf16, GridOrder::kBackward)}},
                                           ConformanceParam{"Bf16FusedAttention",
                                                            Emulated(Dtype::kBf16, GridOrder::kForward, true),
                                                            CudaKernelSizes(Dtype::kBf16),
                                                            {Emulated(Dtype::kBf16, GridOrder::kBackward, true)}}),
                         [](const auto& info) { return info.param.name; });

TEST(CudaDeviceTest, AttentionThatCannotBePlannedFailsTheStream) {
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Device> device,
      cuda::NewCudaDevice(
          {.arena_bytes = 1 << 20},
          cuda::NewEmulatedRuntime(GridOrder::kForward, {.attention_error = absl::ResourceExhaustedError("no room")})));
  ASSERT_OK_AND_ASSIGN(void* memory, device->Address({.offset_bytes = 0, .num_bytes = 1 << 20}));
  device->kernels().Attention(
      {.B = 1, .T = 2, .H = 1, .D = 8, .qkv = memory, .o = memory, .lse = static_cast<float*>(memory)});
  EXPECT_THAT(device->stream(StreamId::kCompute).Synchronize(),
              StatusIs(absl::StatusCode::kResourceExhausted, "compute stream: attention: no room"));
}

TEST(CudaDeviceTest, ItsModelSaysWhichAttentionItHas) {
  const auto model = [](bool has_fused_attention) {
    return (*Emulated(Dtype::kBf16, GridOrder::kForward, has_fused_attention)(1 << 20))->properties().model;
  };
  EXPECT_NE(model(true), model(false));
}

}  // namespace
}  // namespace eps::worker
