#include "gpu_worker/profile/timed_work.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// A stream of a GPU, in numbers: 8 MiB at 55 GB/s each time, and, once they are waited for, a long time until the host
// knows of it. Its clock goes on with that alone, so that no machine is too slow for what is expected of it.
struct FakeLink {
  static constexpr double kEachSeconds = 150e-6, kWaitSeconds = 100e-6;

  WorkClock clock() {
    return [this] { return now; };
  }
  Batch batch() {
    return [this](int64_t times) {
      asked.push_back(times);
      now += static_cast<double>(times) * kEachSeconds + kWaitSeconds;
      return absl::OkStatus();
    };
  }
  Repeated repeated(int64_t times) {
    return {.batch = batch(), .times = times, .apart = [this](int64_t n, double pause_seconds) {
              now += static_cast<double>(n - 1) * pause_seconds;
              return batch()(n);
            }};
  }
  double now = 1;              // seconds
  std::vector<int64_t> asked;  // of each batch
};

TEST(TimedWorkTest, AMeanIsWithoutTheSmallestAndLargestTenth) {
  EXPECT_EQ(TrimmedMean({3}), 3);
  EXPECT_EQ(TrimmedMean({5, 1}), 3);
  EXPECT_EQ(TrimmedMean({4, 4, 1000, 4, 4, 4, 0, 4, 4, 4}), 4);
}

TEST(TimedWorkTest, OneOfManyTakesItsPartOfTheTime) {
  FakeLink link;
  TimedUnit unit = {.what = "", .unit = [&] { return link.batch()(10); }, .times = 10, .clock = link.clock()};
  ASSERT_OK(unit.RunFor(0));
  EXPECT_EQ(unit.samples.size(), 1u);
  ASSERT_OK(unit.RunFor(1.5 * 10 * FakeLink::kEachSeconds));
  EXPECT_EQ(unit.samples.size(), 3u);
  EXPECT_NEAR(unit.Seconds(), FakeLink::kEachSeconds + FakeLink::kWaitSeconds / 10, 1e-9);
}

// Were each waited for, as once, the rate would be 0.6 of the link's: a profile of an H200 had 35 GB/s of 55.
TEST(TimedWorkTest, TheWaitForTheEndOfABatchIsNoPartOfARate) {
  FakeLink link;
  ASSERT_OK_AND_ASSIGN(const int64_t times, TimesIn(10e-3, link.batch(), link.clock()));
  EXPECT_EQ(link.asked.front(), 1);
  EXPECT_EQ(times, 65);  // of 150 us, and a part of the wait, in 10 ms; 40 by the time of one that is waited for
  const Repeated copies = link.repeated(times);
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rates, RatesTogether({&copies}, 0.03, link.clock()));
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_NEAR(rates[0] * FakeLink::kEachSeconds, 1, 0.02);
}

TEST(TimedWorkTest, ABatchIsOneAtLeastAndNeverTooMany) {
  FakeLink link;
  ASSERT_OK_AND_ASSIGN(const int64_t few, TimesIn(0, link.batch(), link.clock()));
  EXPECT_EQ(few, 1);
  ASSERT_OK_AND_ASSIGN(const int64_t many, TimesIn(3600, link.batch(), link.clock()));
  EXPECT_EQ(many, kMostInBatch);
}

TEST(TimedWorkTest, WhoHasBeenMeasuredGoesOnUntilAllHave) {
  std::atomic<int64_t> of_first = 0;
  const Repeated first = {.batch = [&](int64_t) {
    of_first.fetch_add(1);
    return absl::OkStatus();
  }};
  // Each waits until the first has done ten more, by when that one has long been measured.
  const Repeated second = {.batch = [&](int64_t) {
    const int64_t wanted = of_first.load() + 10;
    for (const double begin = HostSeconds(); of_first.load() < wanted;) {
      if (HostSeconds() - begin > 20) return absl::DeadlineExceededError("the first has stopped");
      std::this_thread::yield();
    }
    return absl::OkStatus();
  }};
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rates, RatesTogether({&first, &second}, 0));
  for (const double rate : rates) EXPECT_GT(rate, 0);
  EXPECT_GE(of_first.load(), 10 * kLeastBatches);
}

TEST(TimedWorkTest, WhereOneFailsAllEndWithItsError) {
  const Batch fails = [](int64_t) { return absl::UnavailableError("gone"); };
  const Repeated bad = {.batch = fails};
  const Repeated good = {.batch = [](int64_t) { return absl::OkStatus(); }};
  EXPECT_EQ(RatesTogether({&good, &bad}, 0).status(), absl::UnavailableError("gone"));
  EXPECT_EQ(TimesIn(1, fails).status(), absl::UnavailableError("gone"));
  const auto work = [](int64_t, const Unit& meanwhile) -> absl::StatusOr<double> {
    if (absl::Status status = meanwhile(); !status.ok()) return status;
    return 1.0;
  };
  EXPECT_EQ(SecondsLost({.work = work, .work_seconds = 1, .other = &bad}, 0).status(), absl::UnavailableError("gone"));
}

// Compute whose clock is its own, slowed down by each copy that is begun while it runs.
class LossTest : public ::testing::Test {
 protected:
  static constexpr double kBlockSeconds = 400e-6;

  // What is said to be lost to each copy, of which compute loses so much.
  absl::StatusOr<double> Lost(double seconds_each) {
    const auto work = [this, seconds_each](int64_t times, const Unit& meanwhile) -> absl::StatusOr<double> {
      const double begin = link_.now;
      link_.asked.clear();
      if (absl::Status status = meanwhile(); !status.ok()) return status;
      int64_t copies = 0;
      for (const int64_t of_batch : link_.asked) copies += of_batch;
      const double own_seconds =
          static_cast<double>(times) * kBlockSeconds + static_cast<double>(copies) * seconds_each;
      if (copies > 0) {
        num_batches_ = static_cast<int64_t>(link_.asked.size());
        num_copies_ = copies;
        left_seconds_ = own_seconds - (link_.now - begin);
      }
      link_.now = std::max(link_.now, begin + own_seconds) + FakeLink::kWaitSeconds;  // as long as both take
      return own_seconds;
    };
    return SecondsLost({.work = work,
                        .work_seconds = kBlockSeconds,
                        .other = &copies_,
                        .other_seconds = FakeLink::kEachSeconds,
                        .slowdown = 1},
                       0.1, link_.clock());
  }

  FakeLink link_;
  const Repeated copies_ = link_.repeated(1);
  int64_t num_copies_ = 0, num_batches_ = 0;  // beside compute, the last time
  double left_seconds_ = 0;                   // of compute, when these were done
};

// A profile of an H200 said that copies cost compute 12%: the host's waits were in it.
TEST_F(LossTest, WaitingForCopiesIsNoLossOfCompute) {
  ASSERT_OK_AND_ASSIGN(const double lost, Lost(0));
  EXPECT_NEAR(lost, 0, 1e-12);
}

TEST_F(LossTest, WhatEachTakesIsLost) {
  ASSERT_OK_AND_ASSIGN(const double lost, Lost(30e-6));
  EXPECT_NEAR(lost, 30e-6, 1e-9);
}

TEST_F(LossTest, ThereAreManyOfThemAndAllEndBeforeCompute) {
  ASSERT_OK(Lost(0));
  EXPECT_GE(num_copies_, 10);
  EXPECT_EQ(num_batches_, 1);
  EXPECT_GT(left_seconds_, 0);
}

}  // namespace
}  // namespace eps::worker
