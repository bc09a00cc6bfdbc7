#include "eps_server/report/line_queue.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using testing::ElementsAre;

TEST(LineQueueTest, AllIsWrittenInItsOrderBeforeTheEnd) {
  std::vector<std::string> written;
  {
    LineQueue queue([&](const std::string& line) { written.push_back(line); }, 1000);
    for (const char* line : {"a", "b", "c"}) EXPECT_TRUE(queue.Add(line));
  }
  EXPECT_THAT(written, ElementsAre("a", "b", "c"));
}

TEST(LineQueueTest, NobodyWaitsForAWriteThatHangs) {
  std::vector<std::string> written;
  absl::Notification hangs, goes_on;
  {
    LineQueue queue(
        [&](const std::string& line) {
          if (line == "first") {
            hangs.Notify();
            goes_on.WaitForNotification();
          }
          written.push_back(line);
        },
        10);
    EXPECT_TRUE(queue.Add("first"));
    hangs.WaitForNotification();
    EXPECT_TRUE(queue.Add("12345"));
    EXPECT_FALSE(queue.Add("6"));  // 5 bytes are being written, and 5 wait
    goes_on.Notify();
  }
  EXPECT_THAT(written, ElementsAre("first", "12345"));
}

}  // namespace
}  // namespace eps::server
