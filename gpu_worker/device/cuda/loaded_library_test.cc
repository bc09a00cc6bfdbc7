#include "gpu_worker/device/cuda/loaded_library.h"

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

TEST(LoadedLibraryTest, FindsFunctionsOfALibraryThatIsThere) {
  ASSERT_OK_AND_ASSIGN(const LoadedLibrary library, LoadedLibrary::Open("libm.so.6"));
  double (*cosine)(double) = nullptr;
  EXPECT_OK(library.Find("cos", &cosine));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0), 1);
}

TEST(LoadedLibraryTest, SaysWhereItLookedForOneThatIsNot) {
  const absl::Status status = LoadedLibrary::Open("libeps-is-not-there.so.1").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, "libeps-is-not-there.so.1 cannot be loaded"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, "CUDA_PATH"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, "/lib64/libeps-is-not-there.so.1"));
}

TEST(LoadedLibraryTest, SaysWhichFunctionIsMissing) {
  ASSERT_OK_AND_ASSIGN(const LoadedLibrary library, LoadedLibrary::Open("libm.so.6"));
  void (*nothing)() = nullptr;
  EXPECT_THAT(library.Find("eps_is_not_there", &nothing),
              StatusIs(absl::StatusCode::kFailedPrecondition, "libm.so.6 has no eps_is_not_there"));
}

}  // namespace
}  // namespace eps::worker::cuda
