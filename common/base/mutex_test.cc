#include "common/base/mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

struct Counter {
  Mutex mu;
  CondVar changed;
  int value ABSL_GUARDED_BY(mu) = 0;
};

TEST(MutexTest, OneThreadAtATimeHoldsIt) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) {
        MutexLock lock(counter.mu);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(counter.mu);
  EXPECT_EQ(counter.value, 40000);
}

TEST(MutexTest, AWaiterWakesWhenItIsNotified) {
  Counter counter;
  std::thread other([&] {
    MutexLock lock(counter.mu);
    while (counter.value == 0) counter.changed.Wait(counter.mu);
    ++counter.value;
    counter.changed.NotifyAll();
  });
  {
    MutexLock lock(counter.mu);
    counter.value = 1;
    counter.changed.NotifyOne();
    while (counter.value != 2) counter.changed.Wait(counter.mu);
  }
  other.join();
}

TEST(MutexTest, AWaitThatIsNotNotifiedTimesOutAndHoldsTheLockAgain) {
  Counter counter;
  MutexLock lock(counter.mu);
  // A wait may also wake without cause.
  while (counter.changed.WaitFor(counter.mu, std::chrono::milliseconds(5))) {
  }
  counter.value = 3;
  EXPECT_EQ(counter.value, 3);
}

}  // namespace
}  // namespace eps
