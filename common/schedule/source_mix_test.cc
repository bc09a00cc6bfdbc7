#include "common/schedule/source_mix.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;

std::vector<int> Sources(const std::vector<SourcePick>& picks) {
  std::vector<int> sources;
  for (const SourcePick& pick : picks) sources.push_back(pick.source);
  return sources;
}

TEST(SourceMixTest, ABlockIsTheShortestInWhichEverySourceHasItsShare) {
  const auto shares = [](const std::vector<double>& weights) { return SourceMix(weights, false, 0).shares(); };
  EXPECT_THAT(shares({5}), ElementsAre(1));
  EXPECT_THAT(shares({1, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(shares({0.7, 0.3}), ElementsAre(7, 3));
  EXPECT_THAT(shares({2, 6}), ElementsAre(1, 3));
  EXPECT_THAT(shares({1e-30, 3e-30}), ElementsAre(1, 3));
  EXPECT_THAT(shares({0.1, 0.2, 0.7}), ElementsAre(1, 2, 7));
}

TEST(SourceMixTest, WeightsThatNoBlockHoldsAreRoundedAndNoneToNothing) {
  for (const std::vector<double>& weights : {std::vector<double>{1, std::sqrt(2.0), std::acos(-1.0)},
                                             {1e9, 1, 1, 1},
                                             {1, std::numeric_limits<double>::max()}}) {
    const SourceMix mix(weights, false, 0);
    const std::vector<int64_t>& shares = mix.shares();
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t{0}), SourceMix::kMaxBlock);
    double largest = *std::max_element(weights.begin(), weights.end()), sum = 0;
    for (const double weight : weights) sum += weight / largest;
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_GE(shares[i], 1);
      EXPECT_LE(std::abs(static_cast<double>(shares[i]) - weights[i] / largest / sum * SourceMix::kMaxBlock), 3.0);
    }
  }
  const SourceMix most(std::vector<double>(SourceMix::kMaxBlock, 1.0), false, 0);
  EXPECT_EQ(most.shares(), std::vector<int64_t>(SourceMix::kMaxBlock, 1));
}

TEST(SourceMixTest, SequentialPlacesFollowTheWeightsAsCloselyAsWholeSamplesCan) {
  const SourceMix mix({0.5, 0.25, 0.25}, false, 0);
  EXPECT_THAT(Sources(mix.Picks(0, 8)), ElementsAre(0, 1, 2, 0, 0, 1, 2, 0));
  const std::vector<double> weights = {5, 2, 1, 3};
  const SourceMix other(weights, false, 9);
  std::vector<double> taken(weights.size());
  for (const SourcePick& pick : other.Picks(0, 1000)) {
    ++taken[static_cast<size_t>(pick.source)];
    const double all = std::accumulate(taken.begin(), taken.end(), 0.0);
    for (size_t i = 0; i < taken.size(); ++i) EXPECT_LT(std::abs(taken[i] - all * weights[i] / 11), 1.0 + 1e-9);
  }
}

class SourceMixOrderTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Orders, SourceMixOrderTest, ::testing::Bool());

TEST_P(SourceMixOrderTest, EveryBlockHasTheSharesAndEverySourcesSamplesComeOneByOne) {
  const SourceMix mix({7, 3, 11}, GetParam(), 5);
  std::vector<int64_t> next(3);
  const std::vector<SourcePick> picks = mix.Picks(0, 21 * 50);
  for (size_t place = 0; place < picks.size(); ++place) {
    EXPECT_EQ(picks[place].nth, next[static_cast<size_t>(picks[place].source)]++);
    if (place % 21 == 20) {
      const auto blocks = static_cast<int64_t>(place / 21 + 1);
      EXPECT_THAT(next, ElementsAre(7 * blocks, 3 * blocks, 11 * blocks));
    }
  }
}

TEST_P(SourceMixOrderTest, APlaceIsTheSameWhereverOneBegins) {
  const SourceMix mix({0.6, 0.25, 0.15}, GetParam(), 3), again({0.6, 0.25, 0.15}, GetParam(), 3);
  const std::vector<SourcePick> all = mix.Picks(0, 500);
  for (const int64_t first : {0, 1, 19, 20, 21, 333}) {
    const std::vector<SourcePick> some = again.Picks(first, 37);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first)) << first;
  }
  const int64_t far = int64_t{1} << 60;
  const std::vector<SourcePick> there = mix.Picks(far, 3);
  EXPECT_EQ(mix.Picks(far + 2, 1).front(), there[2]);
  EXPECT_GT(there[0].nth, far / 8);
  EXPECT_TRUE(mix.Picks(7, 0).empty());
}

TEST(SourceMixTest, ShuffledBlocksDifferFromEachOtherAndBySeed) {
  const std::vector<double> weights = {1, 2, 3, 4};
  const SourceMix mix(weights, true, 1), other(weights, true, 2);
  std::set<std::vector<int>> blocks;
  for (int64_t block = 0; block < 20; ++block) {
    blocks.insert(Sources(mix.Picks(10 * block, 10)));
    blocks.insert(Sources(other.Picks(10 * block, 10)));
  }
  EXPECT_GT(blocks.size(), 35u);
}

}  // namespace
}  // namespace eps
