// Held to AVX2, for this whole process: one case, in which nothing computes before.

#include "gpu_worker/device/cpu/vector_limit.h"

#include <memory>

#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

#if defined(__x86_64__)
TEST(VectorLimitTest, TheDeviceComputesWithWhatItIsHeldTo) {
  EXPECT_OK(LimitVectors("widest"));
  EXPECT_THAT(LimitVectors("sse"),
              StatusIs(absl::StatusCode::kInvalidArgument, "--vectors sse: must be one of widest, avx512, avx2"));
  ASSERT_OK(LimitVectors("avx2"));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> device, NewCpuDevice({.arena_bytes = 4096, .threads = 1}));
  // Told by a kernel that was dispatched.
  EXPECT_THAT(device->properties().model, ::testing::MatchesRegex("cpu AVX2 onednn-[0-9.]+-avx2"));
  EXPECT_THAT(LimitVectors("avx512"), StatusIs(absl::StatusCode::kInvalidArgument, "does not have such"));
  EXPECT_THAT(LimitVectors("avx2"), StatusIs(absl::StatusCode::kFailedPrecondition, "has computed with others"));
}
#else
TEST(VectorLimitTest, OtherProcessorsHaveNone) {
  EXPECT_THAT(LimitVectors("avx2"), StatusIs(absl::StatusCode::kInvalidArgument, "another kind of processor"));
}
#endif

}  // namespace
}  // namespace eps::worker
