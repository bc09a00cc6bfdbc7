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
    double want =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
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

}  // namespace
}  // namespace eps
