#include "eps_server/interrupts.h"

#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/end_signals.h"
#include "common/base/long_work.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

struct FakeDaemon final : Daemon {
  absl::Status Start() override { return absl::OkStatus(); }
  absl::Status Wait() override { return absl::OkStatus(); }
  std::unique_ptr<DaemonPage> TakePage(const absl::Status&) override { return nullptr; }
  void Stop(const std::string& reason) override { told.push_back(reason); }
  void Abort(absl::Status why) override { told.push_back(std::string(why.message())); }
  std::vector<std::string> told;
};

TEST(InterruptsTest, TheSecondSignalEndsAtOnceAndSighupNever) {
  FakeDaemon daemon;
  absl::Duration now;
  LongWork work;
  Interrupts interrupts(&work, [&now] { return now; });
  interrupts.OnStarted(&daemon);
  interrupts.OnSignal(SIGHUP);
  interrupts.OnSignal(SIGHUP);
  interrupts.OnSignal(SIGTERM);
  interrupts.OnSignal(SIGTERM);  // the same one, come in two ways
  now = EndSignals::kRepeat;
  interrupts.OnSignal(SIGINT);
  EXPECT_EQ(daemon.told,
            (std::vector<std::string>{"SIGHUP", "SIGHUP", "SIGTERM", "ended at once by a second signal, SIGINT"}));
  EXPECT_EQ(interrupts.OnRunOver(), SIGTERM);
  interrupts.OnSignal(SIGTERM);
  EXPECT_EQ(daemon.told.size(), 4u);
}

TEST(InterruptsTest, WhileTheDaemonStartsTheFirstSignalEndsThat) {
  for (const int number : {SIGTERM, SIGHUP}) {
    LongWork work;
    Interrupts interrupts(&work);
    EXPECT_EQ(interrupts.first(), 0);
    EXPECT_OK(work.Add(1));
    interrupts.OnSignal(number);
    EXPECT_THAT(work.Add(1), StatusIs(absl::StatusCode::kCancelled));
    EXPECT_EQ(interrupts.first(), number);
    FakeDaemon daemon;  // which had loaded all that it had to
    interrupts.OnStarted(&daemon);
    EXPECT_EQ(daemon.told, std::vector<std::string>{number == SIGHUP ? "SIGHUP" : "SIGTERM"});
  }
}

TEST(InterruptsTest, AStoppedRunDoesNotLinger) {
  FakeDaemon daemon;
  LongWork work;
  Interrupts interrupts(&work);
  interrupts.OnStarted(&daemon);
  interrupts.OnSignal(SIGTERM);
  interrupts.OnRunOver();
  interrupts.Linger(absl::Hours(1));
}

TEST(InterruptsTest, LingersUntilASignalOrTheEnd) {
  FakeDaemon daemon;
  LongWork work;
  Interrupts interrupts(&work);
  interrupts.OnStarted(&daemon);
  EXPECT_EQ(interrupts.OnRunOver(), 0);
  const auto begin = std::chrono::steady_clock::now();
  interrupts.Linger(absl::Milliseconds(50));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    interrupts.OnSignal(SIGTERM);
  });
  interrupts.Linger(absl::Hours(1));
  later.join();
  EXPECT_TRUE(daemon.told.empty());
}

}  // namespace
}  // namespace eps::server
