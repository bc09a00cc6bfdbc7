#include "gpu_worker/plan/inner_places.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

std::string Spread(const InnerCounts& counts, int64_t total) {
  std::string text;
  for (const InnerPlace place : SpreadInner(counts, total)) {
    text += place == InnerPlace::kKeep ? 'K' : place == InnerPlace::kSwap ? 'S' : 'R';
  }
  return text;
}

TEST(InnerPlacesTest, TheLastAreKeptAndTheOthersAlternate) {
  EXPECT_EQ(Spread({.total = 8}, 8), "RRRRRRRR");
  EXPECT_EQ(Spread({.total = 8, .kept = 8}, 8), "KKKKKKKK");
  EXPECT_EQ(Spread({.total = 8, .kept = 2, .swapped = 3}, 8), "RSRSRSKK");
  EXPECT_EQ(Spread({.total = 8, .kept = 2, .swapped = 6}, 8), "SSSSSSKK");
  EXPECT_EQ(Spread({.total = 8, .kept = 1, .swapped = 2}, 8), "RRRSRRSK");
  EXPECT_EQ(Spread({}, 0), "");
}

TEST(InnerPlacesTest, ASmallerPassKeepsAsManyAndSwapsTheSameShareOfTheOthers) {
  const InnerCounts counts{.total = 10, .kept = 2, .swapped = 4};
  EXPECT_EQ(Spread(counts, 6), "RSRSKK");
  EXPECT_EQ(Spread(counts, 2), "KK");
  EXPECT_EQ(Spread(counts, 1), "K");
  for (int64_t total = 0; total <= 10; ++total) {
    const std::string places = Spread(counts, total);
    EXPECT_LE(std::count(places.begin(), places.end(), 'S'), counts.swapped);
  }
}

std::vector<InnerPlace> Places(const std::string& text) {
  std::vector<InnerPlace> places;
  for (const char c : text) {
    places.push_back(c == 'K' ? InnerPlace::kKeep : c == 'S' ? InnerPlace::kSwap : InnerPlace::kRecompute);
  }
  return places;
}

TEST(InnerPlacesTest, EverySlotMayKeepWhereNothingElseIsBetween) {
  EXPECT_TRUE(InnerFits(Places("RRKK"), /*items=*/1, /*slots=*/2, /*depth_first_blocks=*/0));
  EXPECT_TRUE(InnerFits(Places("RRKK"), /*items=*/2, /*slots=*/2, /*depth_first_blocks=*/0));
  EXPECT_FALSE(InnerFits(Places("RKRR"), /*items=*/1, /*slots=*/1, /*depth_first_blocks=*/0));
  // On the way back the last block's first micro-batch comes before its second.
  EXPECT_FALSE(InnerFits(Places("RRRK"), /*items=*/2, /*slots=*/1, /*depth_first_blocks=*/0));
  EXPECT_TRUE(InnerFits(Places("RRRK"), /*items=*/2, /*slots=*/2, /*depth_first_blocks=*/0));
  EXPECT_TRUE(InnerFits(Places("KKKK"), /*items=*/2, /*slots=*/4, /*depth_first_blocks=*/0));
  EXPECT_FALSE(InnerFits(Places("KKKK"), /*items=*/2, /*slots=*/3, /*depth_first_blocks=*/0));
  EXPECT_TRUE(InnerFits(Places("SSSS"), /*items=*/2, /*slots=*/1, /*depth_first_blocks=*/0));
  EXPECT_TRUE(InnerFits({}, /*items=*/2, /*slots=*/1, /*depth_first_blocks=*/0));
  EXPECT_FALSE(InnerFits(Places("KKKK"), /*items=*/2, /*slots=*/4, /*depth_first_blocks=*/1));
  EXPECT_TRUE(InnerFits(Places("KKKK"), /*items=*/2, /*slots=*/5, /*depth_first_blocks=*/1));
  EXPECT_TRUE(InnerFits(Places("RSRS"), /*items=*/2, /*slots=*/1, /*depth_first_blocks=*/1));
  EXPECT_TRUE(InnerFits({}, /*items=*/2, /*slots=*/1, /*depth_first_blocks=*/1));
  EXPECT_FALSE(InnerFits(Places("RK"), /*items=*/2, /*slots=*/3, /*depth_first_blocks=*/3));
  EXPECT_TRUE(InnerFits(Places("RK"), /*items=*/2, /*slots=*/4, /*depth_first_blocks=*/3));
}

}  // namespace
}  // namespace eps::worker
