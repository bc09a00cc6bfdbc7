#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "cli/doctor/machine.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(ThisMachineTest, SaysWhatEveryMachineHas) {
  const Machine& machine = ThisMachine();
  EXPECT_TRUE(machine.ReadText("/proc/meminfo").has_value());
  EXPECT_FALSE(machine.ReadText("/proc/no_such_file").has_value());
  EXPECT_FALSE(machine.List("/proc/self").empty());
  EXPECT_TRUE(machine.List("/no/such/folder").empty());
  EXPECT_GE(machine.Cores(), 1);
  EXPECT_NE(machine.OpenFiles().soft, 0);
}

TEST(ThisMachineTest, ADiskIsMeasuredWhereTheFolderWouldBeAndNothingIsLeft) {
  const TempDir dir;
  const std::string folder = dir.File("not/made/yet");
  ASSERT_OK_AND_ASSIGN(const int64_t room, ThisMachine().DiskRoomBytes(folder));
  EXPECT_GT(room, 0);
  ASSERT_OK_AND_ASSIGN(const double speed, ThisMachine().MeasureDiskBytesPerSecond(folder, Machine::kLeastDiskBytes));
  EXPECT_GT(speed, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ThisMachineTest, AFolderThatCannotBeWrittenIsSeenFromBelowWithoutWriting) {
  const TempDir dir;
  EXPECT_OK(ThisMachine().CheckWritable(dir.File("not/made/yet")));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere; tests/system/doctor_test.py mounts a disk";
  ASSERT_EQ(chmod(dir.path().c_str(), 0555), 0);
  EXPECT_THAT(ThisMachine().CheckWritable(dir.File("not/made/yet")),
              StatusIs(absl::StatusCode::kPermissionDenied, dir.path()));
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
}

TEST(ThisMachineTest, WhatIsMeasuredHasNoNameThatAKilledProcessWouldLeave) {
  const TempDir dir;
  if (!OpenFile(dir.path(), O_WRONLY | O_TMPFILE).ok()) GTEST_SKIP() << "this file system has no files without a name";
  bool seen = false;
  std::atomic<bool> done = false;
  std::thread looks([&] {
    while (!done) seen = seen || !std::filesystem::is_empty(dir.path());
  });
  EXPECT_OK(ThisMachine().MeasureDiskBytesPerSecond(dir.path(), Machine::kLeastDiskBytes).status());
  done = true;
  looks.join();
  EXPECT_FALSE(seen);
}

TEST(ThisMachineTest, LibrariesAreFoundWithTheirPlaceAndADriverThatIsNotThereIsNone) {
  const auto library = ThisMachine().FindLibrary({"libno_such_library.so.1", "libm.so.6"});
  ASSERT_TRUE(library.has_value());
  EXPECT_TRUE(std::filesystem::exists(library->path)) << library->path;
  EXPECT_FALSE(ThisMachine().FindLibrary({"libno_such_library.so.1"}).has_value());
  ThisMachine().AskCudaDriver();  // whatever it says, it comes back
}

}  // namespace
}  // namespace eps::cli
