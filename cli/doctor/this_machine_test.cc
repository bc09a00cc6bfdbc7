#include <filesystem>
#include <string>

#include "cli/doctor/machine.h"
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
  ASSERT_OK_AND_ASSIGN(const double speed, ThisMachine().MeasureDiskBytesPerSecond(folder));
  EXPECT_GT(speed, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
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
