#include "common/schedule/sample_order.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

std::vector<int64_t> Epoch(const SampleOrder& order, int64_t num_samples, int64_t epoch) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < num_samples; ++i) samples.push_back(order.SampleAt(epoch * num_samples + i));
  return samples;
}

TEST(SampleOrderTest, SequentialGoesRoundAndRound) {
  const SampleOrder order(3, /*shuffled=*/false, 9);
  EXPECT_EQ(Epoch(order, 7, 0), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(order.SampleAt(std::numeric_limits<int64_t>::max()), std::numeric_limits<int64_t>::max() % 3);
}

TEST(SampleOrderTest, EveryEpochTakesEverySampleOnce) {
  for (int64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 100, 1000, 4096, 4097}) {
    const SampleOrder order(n, /*shuffled=*/true, 7);
    for (int64_t epoch : {0, 1, 2, 1000000}) {
      std::vector<int64_t> samples = Epoch(order, n, epoch);
      std::sort(samples.begin(), samples.end());
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(samples[i], i) << n << " samples, epoch " << epoch;
    }
  }
}

TEST(SampleOrderTest, SeedsAndEpochsGiveOtherOrders) {
  const SampleOrder a(1000, true, 1), b(1000, true, 2);
  EXPECT_NE(Epoch(a, 1000, 0), Epoch(b, 1000, 0));
  EXPECT_NE(Epoch(a, 1000, 0), Epoch(a, 1000, 1));
  EXPECT_EQ(Epoch(a, 1000, 0), Epoch(SampleOrder(1000, true, 1), 1000, 0));
}

// A checkpoint holds a place and not a permutation: the order may never change.
TEST(SampleOrderTest, TheOrderIsFixedForEver) {
  EXPECT_EQ(Epoch(SampleOrder(10, true, 7), 10, 0), (std::vector<int64_t>{7, 8, 1, 5, 2, 4, 0, 9, 6, 3}));
  EXPECT_EQ(SampleOrder(int64_t{1} << 40, true, 7).SampleAt(12345), 241581167742);
}

TEST(SampleOrderTest, ManySamplesAreLookedUpInside) {
  for (const int64_t n : {(int64_t{1} << 40) + 1, std::numeric_limits<int64_t>::max()}) {
    const SampleOrder order(n, true, 3);
    for (int64_t place = 0; place < 1000; ++place) {
      const int64_t sample = order.SampleAt(place);
      ASSERT_GE(sample, 0);
      ASSERT_LT(sample, n);
    }
  }
}

TEST(SampleOrderTest, AFirstSampleIsAnyOneAsOften) {
  constexpr int kSamples = 10, kSeeds = 20000;
  std::map<int64_t, int> counts;
  for (int seed = 0; seed < kSeeds; ++seed) ++counts[SampleOrder(kSamples, true, seed).SampleAt(0)];
  // Five standard deviations of a binomial of p = 1/10.
  const double tolerance = 5 * std::sqrt(kSeeds * 0.1 * 0.9);
  for (int sample = 0; sample < kSamples; ++sample) {
    EXPECT_NEAR(counts[sample], kSeeds / kSamples, tolerance) << "sample " << sample;
  }
}

TEST(SampleOrderTest, NeighboursDoNotStayNeighbours) {
  constexpr int64_t kSamples = 100000;
  const std::vector<int64_t> samples = Epoch(SampleOrder(kSamples, true, 5), kSamples, 0);
  double distance = 0;
  for (int64_t i = 1; i < kSamples; ++i) distance += std::abs(static_cast<double>(samples[i] - samples[i - 1]));
  // Two random places of [0, n) are n / 3 apart on average.
  EXPECT_NEAR(distance / kSamples, kSamples / 3.0, kSamples * 0.01);
}

TEST(SampleOrderDeathTest, NoSamplesAndNegativePlacesAreBugsOfTheCaller) {
  EXPECT_DEATH(SampleOrder(0, false, 0).SampleAt(0), "check failed");
  EXPECT_DEATH(SampleOrder(5, false, 0).SampleAt(-1), "check failed");
}

}  // namespace
}  // namespace eps
