#include "common/numeric/bit_digest.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

std::vector<float> Values(size_t count) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i) * 0.37f - 5);
  return values;
}

TEST(BitDigestTest, EveryBitOfEveryValueCounts) {
  const std::vector<float> values = Values(37);  // two rounds of the lanes and an odd rest
  const uint64_t digest = DigestBits(values);
  std::set<uint64_t> digests = {digest};
  for (size_t i = 0; i < values.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<float> changed = values;
      changed[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(changed[i]) ^ (uint32_t{1} << bit));
      EXPECT_TRUE(digests.insert(DigestBits(changed)).second) << "value " << i << ", bit " << bit;
    }
  }
}

TEST(BitDigestTest, TwoDifferencesDoNotUndoEachOther) {
  const std::vector<float> values = Values(48);
  const uint64_t digest = DigestBits(values);
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      std::vector<float> changed = values;
      changed[i] = -changed[i];
      changed[k] = -changed[k];
      EXPECT_NE(DigestBits(changed), digest) << "values " << k << " and " << i;
    }
  }
}

TEST(BitDigestTest, LengthAndOrderCount) {
  std::set<uint64_t> digests;
  for (size_t count = 0; count < 100; ++count) {
    EXPECT_TRUE(digests.insert(DigestBits(std::vector<float>(count, 0.0f))).second) << count << " zeros";
  }
  std::vector<float> values = Values(32);
  const uint64_t digest = DigestBits(values);
  std::swap(values[0], values[16]);  // the same lane, another round
  EXPECT_NE(DigestBits(values), digest);
  const std::vector<uint64_t> parts = {1, 2}, swapped = {2, 1};
  EXPECT_NE(DigestOfDigests(parts), DigestOfDigests(swapped));
}

TEST(BitDigestTest, ZerosOfEitherSignDifferAndNotANumberIsEqualToItself) {
  const std::vector<float> zero = {0.0f}, minus = {-0.0f}, nan = {std::numeric_limits<float>::quiet_NaN()};
  EXPECT_NE(DigestBits(zero), DigestBits(minus));
  EXPECT_EQ(DigestBits(nan), DigestBits(nan));
}

// Digests are compared across builds: these are the ones that docs/formats.md shows.
TEST(BitDigestTest, StaysWhatItIs) {
  EXPECT_EQ(DigestBits({}), 0x1d0619d67983bb48u);
  EXPECT_EQ(DigestBits({1.0f, -2.0f, 0.5f}), 0x0111a6e991fd0690u);
}

}  // namespace
}  // namespace eps
