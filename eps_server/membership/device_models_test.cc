#include "eps_server/membership/device_models.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/run_state.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DeviceModelsTest, OneModelIsMixedWithNothing) {
  for (const DeviceModelRule rule : {DeviceModelRule::kAny, DeviceModelRule::kOne}) {
    DeviceModels models(rule, {});
    EXPECT_THAT(models.Admit("cpu A", ""), IsOkAndHolds(std::string()));
    models.Use("cpu A");
    models.Use("cpu A");
    EXPECT_THAT(models.Admit("cpu A", ""), IsOkAndHolds(std::string()));
    EXPECT_THAT(models.used(), ElementsAre("cpu A"));
  }
}

TEST(DeviceModelsTest, AnotherIsToldOfWhoTakesPartAndOfWhatTheRunWasComputedWith) {
  DeviceModels models(DeviceModelRule::kAny, {});
  EXPECT_THAT(models.Admit("cpu B", "cpu A"), IsOkAndHolds(std::string("cpu A")));
  models.Use("cpu A");
  EXPECT_THAT(models.Admit("cpu B", ""), IsOkAndHolds(std::string("cpu A")));
  models.Use("cpu B");
  EXPECT_THAT(models.Admit("cpu B", ""), IsOkAndHolds(std::string()));  // it was told when it first came
  EXPECT_THAT(models.Admit("cpu B", "cpu A"), IsOkAndHolds(std::string("cpu A")));
}

TEST(DeviceModelsTest, WhereTheRunWantsOneAnotherIsRefusedByName) {
  DeviceModels models(DeviceModelRule::kOne, {});
  EXPECT_OK(models.CheckRule());
  EXPECT_THAT(models.Admit("cpu B", "cpu A"),  // which may go without having computed
              StatusIs(absl::StatusCode::kUnavailable,
                       "relay.device_models: ONE: this worker computes with \"cpu B\", one that came before it with "
                       "\"cpu A\"; --vectors avx2"));
  models.Use("cpu A");
  EXPECT_OK(models.CheckRule());
  EXPECT_THAT(models.Admit("cpu B", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, "the run was computed with \"cpu A\"; --vectors"));
  EXPECT_THAT(models.Admit("cpu A", ""), IsOkAndHolds(std::string()));
  const absl::Status gpu = models.Admit("NVIDIA X sm_90", "").status();
  EXPECT_THAT(gpu, StatusIs(absl::StatusCode::kInvalidArgument, "; with ANY the last bits are others"));
  EXPECT_THAT(std::string(gpu.message()), Not(HasSubstr("--vectors")));
}

TEST(DeviceModelsTest, ARunThatWasMixedCannotWantOne) {
  EXPECT_THAT(DeviceModels(DeviceModelRule::kOne, {"cpu A", "cpu B"}).CheckRule(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "relay.device_models: ONE: the run was computed with 2 of them, \"cpu A\", \"cpu B\"; set it"));
  EXPECT_OK(DeviceModels(DeviceModelRule::kAny, {"cpu A", "cpu B"}).CheckRule());
}

TEST(DeviceModelsTest, NoMoreAreKeptThanAManifestHolds) {
  DeviceModels models(DeviceModelRule::kAny, {});
  for (size_t i = 0; i < kMaxDeviceModels + 3; ++i) models.Use(absl::StrCat("cpu ", i));
  EXPECT_EQ(models.used().size(), kMaxDeviceModels);
}

}  // namespace
}  // namespace eps::server
