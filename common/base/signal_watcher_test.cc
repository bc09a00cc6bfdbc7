#include "common/base/signal_watcher.h"

#include <signal.h>
#include <unistd.h>

#include <vector>

#include "common/base/mutex.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(SignalWatcherTest, SignalsAreCallsAlsoThoseThatCameBeforeWatch) {
  ASSERT_OK_AND_ASSIGN(const auto watcher, SignalWatcher::Create());
  kill(getpid(), SIGTERM);  // blocked: it waits
  Mutex mu;
  CondVar changed;
  std::vector<int> seen;
  watcher->Watch([&](int number) {
    MutexLock lock(mu);
    seen.push_back(number);
    changed.NotifyAll();
  });
  {
    MutexLock lock(mu);
    while (seen.empty()) changed.Wait(mu);
  }
  kill(getpid(), SIGINT);
  MutexLock lock(mu);
  while (seen.size() < 2) changed.Wait(mu);
  EXPECT_EQ(seen, (std::vector<int>{SIGTERM, SIGINT}));
}

TEST(SignalWatcherTest, AHangUpThatIsIgnoredStaysSo) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
  LeaveIgnoredHangup(set);
  EXPECT_EQ(sigismember(&set, SIGHUP), 1);
  signal(SIGHUP, SIG_IGN);  // as nohup does
  sigaddset(&set, SIGTERM);
  LeaveIgnoredHangup(set);
  EXPECT_EQ(sigismember(&set, SIGHUP), 0);
  EXPECT_EQ(sigismember(&set, SIGTERM), 1);
  signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace eps
