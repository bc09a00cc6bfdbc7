#include "eps_server/memory/offload_speed.h"

#include <filesystem>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/store/scratch_file.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(OffloadSpeedTest, IsThatOfTheFoldersDisk) {
  const TempDir dir;
  if (!ScratchFile::Create(dir.path(), 4096)->is_direct()) GTEST_SKIP() << "its files go through the page cache";
  ASSERT_OK_AND_ASSIGN(const double speed, MeasureOffloadBytesPerSecond(dir.path(), 20 << 20));
  EXPECT_GT(speed, 1e5);
  EXPECT_LT(speed, 1e12);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THAT(MeasureOffloadBytesPerSecond(dir.File("gone"), 1 << 20).status(),
              StatusIs(absl::StatusCode::kNotFound, "gone"));
}

}  // namespace
}  // namespace eps::server
