#include "gpu_worker/device/cpu/cpu_device.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

DeviceFactory WithThreads(int threads) {
  return [threads](int64_t arena_bytes) { return NewCpuDevice({.arena_bytes = arena_bytes, .threads = threads}); };
}

// The reference of bits is one thread; each number of threads is compared with another.
INSTANTIATE_TEST_SUITE_P(
    Cpu, DeviceConformanceTest,
    ::testing::Values(ConformanceParam{"Threads1", WithThreads(1), CpuKernelSizes(), {WithThreads(2), WithThreads(3)}},
                      ConformanceParam{"Threads2", WithThreads(2), CpuKernelSizes(), {}},
                      ConformanceParam{"Threads3", WithThreads(3), CpuKernelSizes(), {}}),
    [](const auto& info) { return info.param.name; });

TEST(CpuDeviceTest, RefusesOptionsOutOfRange) {
  EXPECT_THAT(NewCpuDevice({.arena_bytes = 4096, .threads = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, "threads: 0"));
  EXPECT_THAT(NewCpuDevice({.arena_bytes = 4096, .threads = 100000}),
              StatusIs(absl::StatusCode::kInvalidArgument, "threads"));
  EXPECT_THAT(NewCpuDevice({.arena_bytes = -1, .threads = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, "arena_bytes: -1"));
}

TEST(CpuDeviceTest, AnArenaThatCannotBeMappedIsRefused) {
  EXPECT_THAT(NewCpuDevice({.arena_bytes = int64_t{1} << 60, .threads = 1}),
              StatusIs(absl::StatusCode::kResourceExhausted, "1152921504606846976"));
}

TEST(CpuDeviceTest, SaysWhatItsBitsDependOn) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> one, NewCpuDevice({.arena_bytes = 4096, .threads = 1}));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> two, NewCpuDevice({.arena_bytes = 8192, .threads = 2}));
  EXPECT_EQ(one->properties().model, two->properties().model);
  EXPECT_NE(one->properties().model.find("onednn-"), std::string::npos) << one->properties().model;
  EXPECT_TRUE(one->properties().host_addressable);
  EXPECT_EQ(two->properties().threads, 2);
  EXPECT_GT(two->outside_bytes(), one->outside_bytes()) << "libraries hold memory per thread";
}

TEST(CpuDeviceTest, EveryStreamFlushesDenormals) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> device, NewCpuDevice({.arena_bytes = 4096, .threads = 2}));
  for (const StreamId id : {StreamId::kCompute, StreamId::kIn, StreamId::kOut}) {
    float product = 1;
    device->stream(id).HostCall([&product] {
      volatile float small = 1e-20f, denormal = 1e-40f;
      volatile float flushed = small * small;  // 1e-40 where denormals are kept
      product = flushed * 1e30f + denormal * 1e30f;
      return absl::OkStatus();
    });
    ASSERT_OK(device->stream(id).Synchronize());
    EXPECT_EQ(product, 0.0f);
  }
}

}  // namespace
}  // namespace eps::worker
