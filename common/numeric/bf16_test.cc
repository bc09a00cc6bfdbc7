#include "common/numeric/bf16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(Bf16Test, ValuesWithShortMantissasAreExact) {
  for (const float value : {0.0f, -0.0f, 1.0f, -2.0f, 0.5f, 3.0f, 255.0f, 0x1p-126f, -0x1p127f}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(ToFloat(ToBf16(value))), std::bit_cast<uint32_t>(value)) << value;
  }
}

TEST(Bf16Test, RoundingIsToTheNearestAndTiesGoAwayFromZero) {
  EXPECT_EQ(ToFloat(ToBf16(1 + 0x1p-8f)), 1 + 0x1p-7f);  // a tie, up
  EXPECT_EQ(ToFloat(ToBf16(-1 - 0x1p-8f)), -1 - 0x1p-7f);
  EXPECT_EQ(ToFloat(ToBf16(1 + 0x1p-8f - 0x1p-20f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBf16(1 + 0x3p-8f)), 1 + 0x2p-7f);  // a tie that even would round up as well
}

TEST(Bf16Test, WhatIsWrittenIntoFilesGoesToTheEvenOneOnTies) {
  EXPECT_EQ(ToFloat(ToBf16TiesToEven(1 + 0x1p-8f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBf16TiesToEven(-1 - 0x3p-8f)), -1 - 0x2p-7f);
  EXPECT_EQ(ToFloat(ToBf16TiesToEven(1 + 0x1p-8f + 0x1p-20f)), 1 + 0x1p-7f);
  EXPECT_EQ(ToFloat(ToBf16TiesToEven(-0x1p127f)), -0x1p127f);
}

TEST(Bf16Test, TheErrorIsAtMostHalfAUnit) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float value = std::ldexp(1 + static_cast<float>(random()) * 0x1p-32f, static_cast<int>(random() % 200) - 100);
    const float error = std::fabs(ToFloat(ToBf16(value)) - value);
    ASSERT_FALSE(!(error <= std::ldexp(value, -8))) << value;
  }
}

TEST(Bf16Test, InfinityStays) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(ToBf16(infinity)), infinity);
  EXPECT_EQ(ToFloat(ToBf16(-infinity)), -infinity);
}

TEST(Bf16Test, SplittingAndJoiningRestoresEveryBitPattern) {
  std::mt19937 random(2);
  const auto check = [](uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    const SplitFloat split = Split(value);
    ASSERT_EQ(split.wire.bits, ToBf16(value).bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(Join(split)), bits);
  };
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) check(high << 16 | low);
    check(static_cast<uint32_t>(random()));
  }
}

}  // namespace
}  // namespace eps
