#include "cli/endpoint_wait.h"

#include <vector>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(EndpointWaitTest, TheDaemonsOwnFileIsWaitedForWithPausesThatGrow) {
  const TempDir dir;
  const auto write = [&](int64_t process_id) {
    ASSERT_OK(WriteEndpointFile(dir.path(), EndpointFile::kRunning,
                                {.address = "127.0.0.1:7", .page = "", .process_id = process_id}));
  };
  write(1);  // of one before it
  std::vector<absl::Duration> pauses;
  ASSERT_OK_AND_ASSIGN(const Endpoint endpoint, WaitForEndpoint(dir.path(), 2, [&](absl::Duration pause) {
                         pauses.push_back(pause);
                         if (pauses.size() == 60) write(2);
                         return absl::OkStatus();
                       }));
  EXPECT_EQ(endpoint.process_id, 2);
  ASSERT_EQ(pauses.size(), 60u);
  EXPECT_EQ(pauses.front(), absl::Milliseconds(1));
  EXPECT_EQ(pauses.back(), absl::Milliseconds(50));
}

TEST(EndpointWaitTest, AReasonToEndItEndsIt) {
  const TempDir dir;
  EXPECT_THAT(WaitForEndpoint(dir.path(), 2, [](absl::Duration) { return absl::CancelledError("a signal"); }),
              StatusIs(absl::StatusCode::kCancelled, "a signal"));
}

}  // namespace
}  // namespace eps::cli
