#include "gpu_worker/device_sizes.h"

#include <string>

#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST(DeviceSizesTest, KnowsDevicesByName) {
  ASSERT_OK_AND_ASSIGN(const KernelSizes cpu, FindKernelSizes("cpu", Dtype::kBf16));
  EXPECT_EQ(cpu.compute_dtype, Dtype::kF32);
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    ASSERT_OK_AND_ASSIGN(const KernelSizes cuda, FindKernelSizes("cuda:3", wire));
    EXPECT_EQ(cuda.compute_dtype, wire);
  }
}

TEST(DeviceSizesTest, GpusHaveAnIndex) {
  for (const auto& [name, index] : {std::pair("cuda", 0), {"cuda:0", 0}, {"cuda:12", 12}}) {
    ASSERT_OK_AND_ASSIGN(const int got, GpuIndex(name));
    EXPECT_EQ(got, index) << name;
  }
}

TEST(DeviceSizesTest, WorkersOnOneGpuShareIt) {
  EXPECT_EQ(DefaultGpuMemoryBytes(/*free_bytes=*/950, /*total_bytes=*/1000, /*sharers=*/1), 855);
  EXPECT_EQ(DefaultGpuMemoryBytes(950, 1000, 2), 450);
  EXPECT_EQ(DefaultGpuMemoryBytes(950 - 450, 1000, 2), 450) << "the second one, when the first has taken its share";
  EXPECT_EQ(DefaultGpuMemoryBytes(100, 1000, 2), 90) << "others hold the rest";
}

TEST(DeviceSizesTest, OtherNamesAreRefused) {
  for (const std::string name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "cuda:1:2", "CPU"}) {
    EXPECT_THAT(FindKernelSizes(name, Dtype::kF32), StatusIs(absl::StatusCode::kInvalidArgument, "cpu, cuda or cuda:I"))
        << name;
  }
}

}  // namespace
}  // namespace eps::worker
