#include "gpu_worker/device/cuda/nvidia_device.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// With a GPU, an index that no machine has; without one, whatever is missing.
TEST(NvidiaDeviceTest, SaysWhatIsMissing) {
  const absl::Status status = ProbeNvidiaGpu(1000).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              AnyOf(HasSubstr("no NVIDIA driver is found (libcuda.so.1); this build is for CUDA 13"),
                    HasSubstr("without the toolkit of CUDA 13"), HasSubstr("cuda:1000: this process sees")))
      << status;
}

}  // namespace
}  // namespace eps::worker::cuda
