#include "gpu_worker/leave_request.h"

#include <signal.h>

#include <vector>

#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

class LeaveRequestTest : public ::testing::Test {
 protected:
  absl::Duration now_ = absl::ZeroDuration();
  std::vector<int> exits_;
  int asked_ = 0;
  LeaveRequest request_{[this](int code) { exits_.push_back(code); }, [this] { return now_; }};
};

TEST_F(LeaveRequestTest, WithoutADaemonItEndsAtOnce) {
  EXPECT_EQ(request_.signal(), 0);
  request_.OnSignal(SIGTERM);
  EXPECT_EQ(exits_, (std::vector<int>{kExitSignal + SIGTERM}));
}

TEST_F(LeaveRequestTest, TheFirstSignalAsksAndTheSecondEnds) {
  request_.Attend([this] { ++asked_; });
  request_.OnSignal(SIGINT);
  request_.OnSignal(SIGTERM);  // the same one, come in two ways
  now_ += absl::Seconds(10);
  request_.OnSignal(SIGHUP);  // never a second one
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(exits_.empty());
  EXPECT_EQ(request_.signal(), SIGINT);
  request_.OnSignal(SIGTERM);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(exits_, (std::vector<int>{kExitFailed}));
}

TEST_F(LeaveRequestTest, ADaemonThatIsGoneIsNotAsked) {
  request_.Attend([this] { ++asked_; });
  request_.Unattend();
  request_.OnSignal(SIGHUP);
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(exits_, (std::vector<int>{kExitSignal + SIGHUP}));
}

}  // namespace
}  // namespace eps::worker
