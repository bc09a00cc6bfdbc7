#include "gpu_worker/transport/free_places.h"

#include <array>
#include <optional>

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST(FreePlacesTest, TheLowestPlaceThatFitsIsTaken) {
  FreePlaces places(100, 200);
  EXPECT_EQ(places.Take(40), 100);
  EXPECT_EQ(places.Take(40), 140);
  EXPECT_EQ(places.Take(40), std::nullopt);
  EXPECT_EQ(places.Take(20), 180);
  places.Return(140, 40);
  EXPECT_EQ(places.Take(30), 140);
  EXPECT_EQ(places.Take(10), 170);
  EXPECT_EQ(places.Take(1), std::nullopt);
}

TEST(FreePlacesTest, NeighboursAreJoinedInWhateverOrderTheyComeBack) {
  for (const auto& order : {std::array{0, 1, 2}, std::array{0, 2, 1}, std::array{1, 0, 2}, std::array{1, 2, 0},
                            std::array{2, 0, 1}, std::array{2, 1, 0}}) {
    FreePlaces places(0, 30);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(places.Take(10), 10 * i);
    for (const int piece : order) places.Return(10 * piece, 10);
    EXPECT_EQ(places.Take(30), 0);
  }
}

TEST(FreePlacesTest, NothingIsTakenOfNothing) { EXPECT_EQ(FreePlaces(64, 64).Take(1), std::nullopt); }

}  // namespace
}  // namespace eps::worker
