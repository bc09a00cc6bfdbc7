#include "common/numeric/fp16.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(Fp16Test, EveryFiniteValueIsItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
    if (exponent == 0x1F) continue;
    double want = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (bits & 0x8000) want = -want;
    const float got = ToFloat(Fp16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(got, want) << bits;
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Fp16Test, InfinitiesAndNansStay) {
  EXPECT_EQ(ToFloat(Fp16{0x7C00}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(ToFloat(Fp16{0xFC00}), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(ToFloat(Fp16{0x7C01})));
  EXPECT_TRUE(std::isnan(ToFloat(Fp16{0xFFFF})));
}

TEST(Fp16Test, EveryValueComesBackFromFp32) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Fp16 value{static_cast<uint16_t>(bits)};
    const bool nan = (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0;
    const Fp16 again = ToFp16(ToFloat(value));
    if (nan) {
      EXPECT_NE(again.bits & 0x3FF, 0) << bits;
      EXPECT_EQ(again.bits & 0xFC00, bits & 0xFC00) << bits;
    } else {
      EXPECT_EQ(again.bits, bits);
    }
  }
}

TEST(Fp16Test, BetweenTwoValuesTheNearestIsTakenAndOnATieTheEvenOne) {
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float below = ToFloat(Fp16{static_cast<uint16_t>(bits)});
    const float above = ToFloat(Fp16{static_cast<uint16_t>(bits + 1)});
    const float middle = below + (above - below) / 2;  // exact: fp32 has the room
    EXPECT_EQ(ToFp16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    EXPECT_EQ(ToFp16(std::nextafter(middle, below)).bits, bits);
    EXPECT_EQ(ToFp16(std::nextafter(middle, above)).bits, bits + 1);
    EXPECT_EQ(ToFp16(-std::nextafter(middle, below)).bits, bits | 0x8000);
  }
  EXPECT_EQ(ToFp16(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(ToFp16(65520.0f).bits, 0x7C00);
}

}  // namespace
}  // namespace eps
