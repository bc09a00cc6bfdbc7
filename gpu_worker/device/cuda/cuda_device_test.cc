#include "gpu_worker/device/cuda/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/spec/graph_use.h"
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

DeviceFactory Emulated(Dtype act, GridOrder order, bool has_fused_attention = false, bool attention_by_parts = false) {
  return [=](int64_t arena_bytes) {
    return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = act, .graphs = GraphUse::kAlways},
                               cuda::NewEmulatedRuntime(order, {.has_fused_attention = has_fused_attention,
                                                                .attention_by_parts = attention_by_parts}));
  };
}

// What the suite multiplies is of bf16's precision, which TF32 keeps: its bounds are those of fp32.
DeviceFactory EmulatedTf32(GridOrder order) {
  return [=](int64_t arena_bytes) {
    return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = Dtype::kF32, .tf32 = true},
                               cuda::NewEmulatedRuntime(order));
  };
}

// The same bits in the other order of threads and blocks: nothing hangs on a barrier that is missing. With fused
// attention it is the library's graph where it is taken, and the plain kernel elsewhere; and the same whole and by parts.
INSTANTIATE_TEST_SUITE_P(CudaKernels, DeviceConformanceTest,
                         ::testing::Values(ConformanceParam{"Fp32",
                                                            Emulated(Dtype::kF32, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kF32),
                                                            {Emulated(Dtype::kF32, GridOrder::kBackward)}},
                                           ConformanceParam{"Bf16",
                                                            Emulated(Dtype::kBf16, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kBf16),
                                                            {Emulated(Dtype::kBf16, GridOrder::kBackward)}},
                                           ConformanceParam{"Tf32",
                                                            EmulatedTf32(GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kF32),
                                                            {EmulatedTf32(GridOrder::kBackward)}},
                                           ConformanceParam{"Fp16",
                                                            Emulated(Dtype::kF16, GridOrder::kForward),
                                                            CudaKernelSizes(Dtype::kF16),
                                                            {Emulated(Dtype::kF16, GridOrder::kBackward)}},
                                           ConformanceParam{"Fp16FusedAttention",
                                                            Emulated(Dtype::kF16, GridOrder::kForward, true),
                                                            CudaKernelSizes(Dtype::kF16),
                                                            {Emulated(Dtype::kF16, GridOrder::kBackward, true, true)}},
                                           ConformanceParam{
                                               "Bf16FusedAttention",
                                               Emulated(Dtype::kBf16, GridOrder::kForward, true),
                                               CudaKernelSizes(Dtype::kBf16),
                                               {Emulated(Dtype::kBf16, GridOrder::kBackward, true, true)}}),
                         [](const auto& info) { return info.param.name; });

TEST(CudaDeviceTest, HostMemoryThatCannotBePinnedIsThereAllTheSame) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> device,
                       cuda::NewCudaDevice({.arena_bytes = 4096, .act = Dtype::kF32},
                                           cuda::NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 1000})));
  ASSERT_OK_AND_ASSIGN(void* at, device->Address({0, 1000}));
  std::vector<HostMemory> held;
  for (int i = 0; i < 2; ++i) {  // the second is not pinned
    ASSERT_OK_AND_ASSIGN(const HostMemory memory, device->NewHostMemory(600));
    ASSERT_EQ(memory.bytes.size(), 600u);
    std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{3});
    Stream& in = device->stream(StreamId::kIn);
    in.CopyIn(at, memory.bytes);
    std::vector<std::byte> back(600);
    in.CopyOut(absl::MakeSpan(back), at);
    ASSERT_OK(in.Synchronize());
    EXPECT_TRUE(std::equal(back.begin(), back.end(), memory.bytes.begin()));
    held.push_back(memory);
  }
}

// In pieces of 256 MiB, of which the first and the last can be: a copy goes over both ends of the second.
TEST(CudaDeviceTest, HostMemoryThatCannotBePinnedAtOnceIsPinnedInPieces) {
  constexpr int64_t kPiece = int64_t{256} << 20, kBytes = 2 * kPiece + 1000, kCopied = 2000;
  std::atomic<int64_t> pinned = 0;
  ASSERT_OK_AND_ASSIGN(
      std::unique_ptr<Device> device,
      cuda::NewCudaDevice({.arena_bytes = 4096, .act = Dtype::kF32},
                          cuda::NewEmulatedRuntime(GridOrder::kForward,
                                                   {.most_pinned_bytes = kPiece + 8192, .pinned_bytes = &pinned})));
  ASSERT_OK_AND_ASSIGN(void* at, device->Address({0, kCopied}));
  ASSERT_OK_AND_ASSIGN(HostMemory memory, device->NewHostMemory(kBytes));
  ASSERT_EQ(memory.bytes.size(), static_cast<size_t>(kBytes));
  EXPECT_EQ(pinned, kPiece + 4096);
  Stream& in = device->stream(StreamId::kIn);
  for (const int64_t first : {kPiece - 1000, 2 * kPiece - 1000}) {
    const absl::Span<std::byte> part = memory.bytes.subspan(static_cast<size_t>(first), kCopied);
    std::fill(part.begin(), part.end(), std::byte{3});
    in.CopyIn(at, part);
    in.HostCall([part] {
      std::fill(part.begin(), part.end(), std::byte{4});
      return absl::OkStatus();
    });
    in.CopyOut(part, at);
    ASSERT_OK(in.Synchronize());
    EXPECT_EQ(std::count(part.begin(), part.end(), std::byte{3}), kCopied);
  }
  memory = HostMemory();
  EXPECT_EQ(pinned, 0);
  ASSERT_OK_AND_ASSIGN(const HostMemory outlives, device->NewHostMemory(kBytes));
  EXPECT_EQ(pinned, kPiece + 4096);
  device.reset();
  EXPECT_EQ(pinned, 0) << "no device copies to it";
  outlives.bytes.back() = std::byte{5};
}

// The next copy is enqueued before the host waits for one, and not the one after: the link has something to do meanwhile.
TEST(CudaDeviceTest, ACopyIsUnderWayWhileTheHostHandlesTheOneBefore) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> device, Emulated(Dtype::kF32, GridOrder::kForward)(4096));
  ASSERT_OK_AND_ASSIGN(void* at, device->Address({0, 256}));
  std::vector<std::byte> place(256);
  std::vector<std::string> order;
  Stream& out = device->stream(StreamId::kOut);
  for (const std::string name : {"0", "1", "2"}) {
    out.CopyOutTo(
        [&, name]() -> absl::StatusOr<absl::Span<std::byte>> {
          order.push_back("copy " + name);
          return absl::MakeSpan(place);
        },
        at,
        [&, name] {
          order.push_back("then " + name);
          return absl::OkStatus();
        });
  }
  ASSERT_OK(out.Synchronize());
  EXPECT_EQ(order, (std::vector<std::string>{"copy 0", "copy 1", "then 0", "copy 2", "then 1", "then 2"}));
}

// Whichever stream is asked first: it says that it only found the error.
TEST(CudaDeviceTest, AnErrorOfAKernelIsNotBlamedOnTheCallThatFindsIt) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> device,
                       cuda::NewCudaDevice({.arena_bytes = 4096, .act = Dtype::kF32},
                                           cuda::NewEmulatedRuntime(GridOrder::kForward, {.good_launches = 0})));
  class : public WorkLabel {
    std::string ToString() const override { return "step 41, layer h.3, backward"; }
  } label;
  ASSERT_OK_AND_ASSIGN(void* at, device->Address({0, 256}));
  Stream& compute = device->stream(StreamId::kCompute);
  compute.SetLabel(&label);
  device->kernels().FillZero({.num_bytes = 256, .dst = at});
  EXPECT_THAT(compute.Synchronize(),
              StatusIs(absl::StatusCode::kInternal,
                       "up to step 41, layer h.3, backward: compute stream: found by Synchronize, in work that some "
                       "stream of the GPU had been given before: an emulated fault"));
  Stream& in = device->stream(StreamId::kIn);
  const std::vector<std::byte> bytes(256);
  in.SetLabel(&label);
  in.CopyIn(at, bytes);
  EXPECT_THAT(in.Synchronize(), StatusIs(absl::StatusCode::kInternal,
                                         "step 41, layer h.3, backward: in-stream: found by CopyIn, in work that some "
                                         "stream of the GPU had been given before"));
}

TEST(CudaDeviceTest, AttentionThatCannotBePlannedFailsTheStream) {
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Device> device,
      cuda::NewCudaDevice(
          {.arena_bytes = 1 << 20},
          cuda::NewEmulatedRuntime(GridOrder::kForward, {.attention_error = absl::ResourceExhaustedError("no room")})));
  ASSERT_OK_AND_ASSIGN(void* memory, device->Address({.offset_bytes = 0, .num_bytes = 1 << 20}));
  device->kernels().Attention(
      {.B = 1, .T = 2, .H = 1, .kv_heads = 1, .D = 8, .qkv = memory, .o = memory, .lse = static_cast<float*>(memory)});
  EXPECT_THAT(device->stream(StreamId::kCompute).Synchronize(),
              StatusIs(absl::StatusCode::kResourceExhausted, "compute stream: attention: no room"));
}

// A question would be an error here.
TEST(CudaDeviceTest, AttentionIsPlainWhereItIsToldSo) {
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Device> device,
      cuda::NewCudaDevice(
          {.arena_bytes = 1 << 20, .plain_attention = true},
          cuda::NewEmulatedRuntime(GridOrder::kForward, {.attention_error = absl::ResourceExhaustedError("no room")})));
  ASSERT_OK_AND_ASSIGN(void* memory, device->Address({.offset_bytes = 0, .num_bytes = 1 << 20}));
  auto* const lse = static_cast<float*>(memory) + 1024;
  device->kernels().Attention({.B = 1,
                               .T = 2,
                               .H = 1,
                               .kv_heads = 1,
                               .D = 8,
                               .qkv = memory,
                               .o = static_cast<float*>(memory) + 2048,
                               .lse = lse});
  EXPECT_OK(device->stream(StreamId::kCompute).Synchronize());
}

TEST(CudaDeviceTest, ItsModelSaysWhichAttentionItHas) {
  const auto model = [](bool has_fused_attention) {
    return (*Emulated(Dtype::kBf16, GridOrder::kForward, has_fused_attention)(1 << 20))->properties().model;
  };
  EXPECT_NE(model(true), model(false));
}

}  // namespace
}  // namespace eps::worker
