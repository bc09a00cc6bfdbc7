#include "common/base/open_files.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(OpenFilesTest, ConnectionsWithinAreTheMostThatFit) {
  for (int64_t files = kOtherFiles; files < 5000; ++files) {
    const int64_t connections = ConnectionsWithin(files);
    EXPECT_LE(NeededOpenFiles(connections), files);
    EXPECT_GT(NeededOpenFiles(connections + 1), files) << files;
  }
}

}  // namespace
}  // namespace eps
