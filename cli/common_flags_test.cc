#include "cli/common_flags.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/memory_room.h"
#include "common/testing/environment_variable.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kGib = int64_t{1} << 30;
const MemoryRoom kRoom = {.total_bytes = 16 * kGib, .available_bytes = 12 * kGib};

TEST(WorkerFlagsTest, WithoutACapWorkersShareHalfOfTheRoom) {
  WorkerFlags flags;
  flags.SetDefaultMemory(kRoom, 3);
  EXPECT_EQ(flags.device_memory_bytes, 2 * kGib);
  EXPECT_THAT(flags.ToArguments("h:1", 4, 1),
              ElementsAre("--connect", "h:1", "--device", "cpu", "--threads", "4", "--device-memory", "2147483648"));
}

TEST(WorkerFlagsTest, AGivenCapIsLeftAloneAndAGpuIsSharedByItsWorkers) {
  WorkerFlags given = {.device_memory_bytes = 7};
  given.SetDefaultMemory(kRoom, 3);
  EXPECT_EQ(given.device_memory_bytes, 7);
  WorkerFlags cuda = {.device = "cuda:1"};
  cuda.SetDefaultMemory(kRoom, 3);
  EXPECT_EQ(cuda.device_memory_bytes, 0);
  EXPECT_THAT(cuda.ToArguments("h:1", 4, 2), ElementsAre("--connect", "h:1", "--device", "cuda:1", "--threads", "4",
                                                         "--host-workers", "3", "--host-turn", "2"));
  WorkerFlags alone = {.device = "cuda"};
  alone.SetDefaultMemory(kRoom, 1);
  EXPECT_THAT(alone.ToArguments("h:1", 4, 0), ElementsAre("--connect", "h:1", "--device", "cuda", "--threads", "4"));
  WorkerFlags capped = {.device = "cuda", .device_memory_bytes = 7};
  capped.SetDefaultMemory(kRoom, 3);
  EXPECT_THAT(capped.ToArguments("h:1", 4, 0),
              ElementsAre("--connect", "h:1", "--device", "cuda", "--threads", "4", "--device-memory", "7",
                          "--host-workers", "3", "--host-turn", "0"));
  WorkerFlags narrow = {.vectors = "avx2"};
  EXPECT_THAT(narrow.ToArguments("h:1", 4, 0),
              ElementsAre("--connect", "h:1", "--device", "cpu", "--threads", "4", "--vectors", "avx2"));
  WorkerFlags unknown;
  unknown.SetDefaultMemory(MemoryRoom(), 3);
  EXPECT_EQ(unknown.device_memory_bytes, 0);
}

TEST(WorkerFlagsTest, OtherNumbersOfWorkersShareAnewAndTakeNoMoreThanBefore) {
  WorkerFlags flags;
  flags.SetDefaultMemory(kRoom, 2);
  EXPECT_EQ(flags.device_memory_bytes, 3 * kGib);
  EXPECT_EQ(flags.ForSoMany(kRoom, 2).device_memory_bytes, 3 * kGib);
  EXPECT_EQ(flags.ForSoMany(kRoom, 3).device_memory_bytes, 2 * kGib);
  EXPECT_EQ(flags.ForSoMany(kRoom, 1).device_memory_bytes, 3 * kGib);
  WorkerFlags given = {.device = "cuda", .device_memory_bytes = 7};
  given.SetDefaultMemory(kRoom, 1);
  EXPECT_EQ(given.ForSoMany(kRoom, 3).device_memory_bytes, 7);
  EXPECT_EQ(given.ForSoMany(kRoom, 3).workers, 3);
}

TEST(WorkerFlagsTest, OneMoreHasWhatIsLeft) {
  WorkerFlags flags;
  flags.SetDefaultMemory(kRoom, 1);
  EXPECT_EQ(flags.device_memory_bytes, 6 * kGib);
  const int cores = UsableCores();
  WorkerFlags more = flags.ForOneMore({.total_bytes = 16 * kGib, .available_bytes = 4 * kGib}, 2);
  EXPECT_EQ(more.device_memory_bytes, 2 * kGib);
  EXPECT_EQ(more.threads, std::max(1, cores / 3));
  EXPECT_EQ(flags.ForOneMore(kRoom, 1).device_memory_bytes, 6 * kGib);  // no more than the first has

  WorkerFlags given = {.device = "cuda", .device_memory_bytes = 7, .threads = 5};
  given.SetDefaultMemory(kRoom, 1);
  more = given.ForOneMore(kRoom, 1);
  EXPECT_EQ(more.device_memory_bytes, 7);
  EXPECT_THAT(more.ToArguments("h:1", 4, 1),
              ElementsAre("--connect", "h:1", "--device", "cuda", "--threads", "5", "--device-memory", "7",
                          "--host-workers", "2", "--host-turn", "1"));
}

TEST(WorkerFlagsTest, AllPlanWithOneProfile) {
  const EnvironmentVariable cache("XDG_CACHE_HOME", "/dev/null");  // where nothing is kept
  WorkerFlags flags;
  flags.SetDefaultProfile(2);
  EXPECT_EQ(flags.profile, worker::kNominalProfile);
  EXPECT_THAT(flags.ToArguments("h:1", 2, 0),
              ElementsAre("--connect", "h:1", "--device", "cpu", "--threads", "2", "--profile", "nominal"));
  flags.profile = "machine.json";
  flags.SetDefaultProfile(2);
  EXPECT_EQ(flags.profile, "machine.json");
}

TEST(ReportStartTest, TheExitCodeSaysWhoseTurnItIs) {
  EXPECT_EQ(ReportStart(absl::OkStatus()), kExitDone);
  EXPECT_EQ(ReportStart(absl::UnavailableError("disk full")), kExitFailed);
  EXPECT_EQ(ReportStart(absl::NotFoundError("no file")), kExitBadInput);
  EXPECT_EQ(ReportStart(absl::ResourceExhaustedError("needs at least 3 bytes")), kExitDoesNotFit);
}

TEST(WorkerExitCodeTest, WhatADaemonSaysIsNoBadInput) {
  EXPECT_EQ(WorkerExitCode(absl::OkStatus()), kExitDone);
  EXPECT_EQ(WorkerExitCode(absl::InvalidArgumentError("--device")), kExitBadInput);
  EXPECT_EQ(WorkerExitCode(absl::ResourceExhaustedError("needs at least 3 bytes")), kExitDoesNotFit);
  EXPECT_EQ(WorkerExitCode(absl::NotFoundError("daemon")), kExitFailed);
  EXPECT_EQ(WorkerExitCode(absl::FailedPreconditionError("daemon")), kExitFailed);
}

TEST(WorkerExitCodeTest, WhatRanOutOfTheHostDoesNotSayThatTheRunDoesNotFitTheDevice) {
  EXPECT_EQ(WorkerExitCode(NotOfTheDevice(absl::ResourceExhaustedError("open files"))), kExitFailed);
  EXPECT_THAT(NotOfTheDevice(absl::ResourceExhaustedError("open files")),
              StatusIs(absl::StatusCode::kInternal, "open files"));
  EXPECT_EQ(NotOfTheDevice(absl::NotFoundError("file")), absl::NotFoundError("file"));
  EXPECT_OK(NotOfTheDevice(absl::OkStatus()));
}

}  // namespace
}  // namespace eps::cli
