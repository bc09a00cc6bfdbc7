#include "common/base/ids.h"

#include <sstream>
#include <type_traits>

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(IdsTest, IdsOfDifferentKindsDoNotMix) {
  static_assert(!std::is_convertible_v<int, BlobId>);
  static_assert(!std::is_convertible_v<BlobId, LayerId>);
  static_assert(!std::is_convertible_v<BlobId, int>);
  static_assert(!std::is_constructible_v<BlobId, LayerId>);
}

TEST(IdsTest, IdsCompareByValue) {
  EXPECT_EQ(BlobId(3), BlobId(3));
  EXPECT_LT(BlobId(2), BlobId(3));
  EXPECT_EQ(BlobId().value(), 0);
}

TEST(IdsTest, AStepReadsItsOwnVersionAndMakesTheNext) {
  EXPECT_EQ(ReadVersion(StepId(41)), Version(41));
  EXPECT_EQ(NextVersion(StepId(41)), Version(42));
}

TEST(IdsTest, IdsArePrintedAndHashed) {
  std::ostringstream out;
  out << BlobId(7);
  EXPECT_EQ(out.str(), "7");
  EXPECT_EQ(absl::Hash<BlobId>()(BlobId(7)), absl::Hash<BlobId>()(BlobId(7)));
}

}  // namespace
}  // namespace eps
