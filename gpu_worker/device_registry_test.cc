#include "gpu_worker/device_registry.h"

#include <string>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// On the emulator's two GPUs.
TEST(FindPlaceTest, WorkersTakeTheGpusInTurnAndShareThoseThatAreTooFew) {
  for (int turn = 0; turn < 5; ++turn) {
    const DevicePlace place = FindPlace("cuda", turn, /*workers=*/5);
    EXPECT_EQ(place.device, turn % 2 == 0 ? "cuda:0" : "cuda:1") << turn;
    EXPECT_EQ(place.sharers, turn % 2 == 0 ? 3 : 2) << turn;
  }
  EXPECT_EQ(FindPlace("cuda", 0, 1).device, "cuda:0");
  EXPECT_EQ(FindPlace("cuda", 1, 2).sharers, 1);
}

TEST(FindPlaceTest, ADeviceThatIsNamedIsEveryWorkers) {
  for (const std::string name : {"cpu", "cuda:1", "cuda:x"}) {
    const DevicePlace place = FindPlace(name, /*turn=*/2, /*workers=*/3);
    EXPECT_EQ(place.device, name);
    EXPECT_EQ(place.sharers, 3);
  }
}

TEST(FindDeviceTest, AGpuThatIsNotThereAndANameThatMeansNothingAreRefused) {
  EXPECT_OK(FindDevice("cuda:1")->probe(1).status());
  EXPECT_THAT(FindDevice("cuda:2")->probe(1).status(), StatusIs(absl::StatusCode::kNotFound, "cuda:2"));
  EXPECT_THAT(FindDevice("cuda:x").status(), StatusIs(absl::StatusCode::kInvalidArgument, "cuda:I"));
}

}  // namespace
}  // namespace eps::worker
