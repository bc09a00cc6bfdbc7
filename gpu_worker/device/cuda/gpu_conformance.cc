// The conformance suite on the first GPU of the process. Exits with 77 where there is none that would do.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/graph_use.h"
#include "common/tensor/dtype.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/checked_attention.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device/cuda/nvidia_runtime.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
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

constexpr int64_t kCudnnTile = 128;  // of at most so many positions, of queries and of keys: Hopper's

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

INSTANTIATE_TEST_SUITE_P(
    Gpu, LargeConformanceTest,
    ::testing::Values(ConformanceParam{"Fp16", Gpu(Dtype::kF16), cuda::CudaKernelSizes(Dtype::kF16)},
                      ConformanceParam{"Bf16", Gpu(Dtype::kBf16), cuda::CudaKernelSizes(Dtype::kBf16)}),
    [](const auto& info) { return info.param.name; });

// Else the cases above would be the plain kernel's, and pass.
class GpuAttentionTest : public ::testing::TestWithParam<Dtype> {};

TEST_P(GpuAttentionTest, TheLibraryTakesWhatItIsKnownToTake) {
  auto made = cuda::NewNvidiaRuntime(0);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<cuda::GpuRuntime> runtime = *std::move(made);
  const std::string model = runtime->model();
  ASSERT_THAT(model, ::testing::HasSubstr("cudnn-"));
  ASSERT_THAT(model, ::testing::HasSubstr(" sm_"));
  int sm = 0;  // "... sm_90 ..."
  ASSERT_EQ(std::sscanf(model.c_str() + model.find("sm_"), "sm_%d", &sm), 1) << model;
  struct Asked {
    int64_t D, window;  // window -1: not causal
    bool documents;
    double dropout;
  };
  cuda::CheckedAttention attention(runtime);
  // Each takes two plans, of a second or so: so any two of these settings together, and not all of them.
  for (const auto& [D, window, documents, dropout] :
       {Asked{24, -1, false, 0.1}, Asked{24, 0, true, 0}, Asked{24, 100, false, 0}, Asked{64, -1, true, 0},
        Asked{64, 0, false, 0.1}, Asked{64, 100, true, 0.1}, Asked{128, -1, false, 0}, Asked{128, 0, false, 0},
        Asked{128, 100, true, 0.1}}) {
    const cuda::SdpaProblem problem = {.B = 2,
                                       .T = 192,
                                       .H = 4,
                                       .kv_heads = 2,
                                       .D = D,
                                       .act = GetParam(),
                                       .scale = 0.1,
                                       .causal = window >= 0,
                                       .window = std::max<int64_t>(window, 0),
                                       .dropout = dropout,
                                       .documents = documents};
    const absl::StatusOr<bool> takes = runtime->TakesAttention(problem);
    ASSERT_TRUE(takes.ok()) << takes.status();
    SCOPED_TRACE(testing::Message() << "D " << D << " window " << window << " documents " << documents << " dropout "
                                    << dropout);
    EXPECT_EQ(*takes, cuda::CheckFusedAttention(problem, sm / 10).ok());
    // Windows and documents are computed rightly by all libraries that were seen in the forms in which they are asked for,
    // and so believed; of dropout that is not known.
    if (dropout > 0) continue;
    EXPECT_EQ(attention.Takes(problem).value_or(!*takes), *takes);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuAttentionTest, ::testing::Values(Dtype::kBf16, Dtype::kF16),
                         [](const auto& info) { return info.param == Dtype::kBf16 ? "Bf16" : "Fp16"; });

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
