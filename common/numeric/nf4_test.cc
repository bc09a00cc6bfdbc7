#include "common/numeric/nf4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/numeric/bf16.h"
#include "common/numeric/quantized.h"
#include "common/numeric/quantized_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(Nf4Test, TheExampleOfTheFormatsPage) {
  std::vector<float> values(128, 0.0f);
  values[0] = 1.0f;
  values[1] = -0.4f;
  values[2] = 0.04f;  // 0.02 of the scale: nearer to 0 than to 0.0796
  values[3] = -2.0f;
  const std::vector<std::byte> bytes = Encoded(QuantizedFormat::kNf4, values);
  ASSERT_EQ(bytes.size(), 68u);
  EXPECT_EQ(bytes[0], std::byte{0x5C});  // 0.5 and -0.2 of the scale: 0.44 and -0.18
  EXPECT_EQ(bytes[1], std::byte{0x07});
  EXPECT_EQ(bytes[2], std::byte{0x77});
  EXPECT_EQ(bytes[64], std::byte{0x00});  // 2.0
  EXPECT_EQ(bytes[65], std::byte{0x40});
  EXPECT_EQ(bytes[66], std::byte{0});
  EXPECT_EQ(bytes[67], std::byte{0});
  EXPECT_EQ(Decoded(QuantizedFormat::kNf4, bytes, 0, 5, 128),
            (std::vector<float>{0.8828125f, -0.369140625f, 0, -2, 0}));
}

constexpr int kNf4Zero = 7;  // the code of 0

// Of the standard normal distribution.
double Quantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return low;
}

// QLoRA's appendix E: 8 quantiles below 0 and 9 from 0 on, evenly spaced from 1 - 0.9677083 and to 0.9677083, over the
// largest.
TEST(Nf4Test, TheNumbersAreQuantilesOfANormalDistribution) {
  const double end = 0.9677083, largest = Quantile(end);
  for (int code = 0; code < kNf4Zero; ++code) {
    EXPECT_NEAR(Nf4Number(code), -Quantile(end + (0.5 - end) * code / 7) / largest, 2e-7) << code;
  }
  EXPECT_EQ(Nf4Number(kNf4Zero), 0);
  for (int code = kNf4Zero + 1; code < kNf4Codes; ++code) {
    EXPECT_NEAR(Nf4Number(code), Quantile(end + (0.5 - end) * (kNf4Codes - 1 - code) / 8) / largest, 2e-7) << code;
  }
}

// By the rule itself, in fp64: none of the 16 is nearer.
TEST(Nf4Test, EachValueIsTheNearestThatTheBlockHas) {
  const std::vector<float> values = ValuesOfAllSizes(10000, 1);
  const std::vector<float> decoded =
      Decoded(QuantizedFormat::kNf4, Encoded(QuantizedFormat::kNf4, values), 0, values.size(), values.size());
  for (size_t block = 0; block < values.size(); block += kNf4BlockElems) {
    const size_t end = std::min(values.size(), block + static_cast<size_t>(kNf4BlockElems));
    float largest = 0;
    for (size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    const double scale = ToFloat(Bf16{static_cast<uint16_t>(std::bit_cast<uint32_t>(largest) >> 16)});
    for (size_t i = block; i < end; ++i) {
      double nearest = 0;
      for (int code = 0; code < kNf4Codes; ++code) {
        const double number = Nf4Number(code);
        if (std::abs(number * scale - values[i]) < std::abs(nearest - values[i])) nearest = number * scale;
      }
      EXPECT_NEAR(decoded[i], nearest, std::abs(nearest) / 256) << i << ": " << values[i] << " of " << scale;
      EXPECT_LE(std::abs(decoded[i] - values[i]), 0.16 * scale) << i;
    }
  }
}

// Whatever the scale: of each of the bf16 that it may be.
TEST(Nf4Test, EveryCodeOfEveryScaleEncodesToItself) {
  for (uint32_t bits = 7u << 7; bits < 0x7F80; ++bits) {
    const Bf16 scale = {static_cast<uint16_t>(bits)};
    float block[kNf4BlockElems];
    std::byte codes[kNf4BlockElems / 2];
    for (int64_t i = 0; i < kNf4BlockElems; ++i) block[i] = Nf4Value(Nf4Number(static_cast<int>(i % kNf4Codes)), scale);
    ASSERT_EQ(EncodeNf4Block(block, codes).bits, scale.bits);
    for (int i = 0; i < kNf4BlockElems / 2; ++i) {
      const int first = 2 * i % kNf4Codes;
      ASSERT_EQ(std::to_integer<int>(codes[i]), first | (first + 1) << 4) << bits;
    }
  }
}

// Nothing becomes larger than the largest was, so that a wire that holds a tensor's values holds what they become.
TEST(Nf4Test, NoBlockGrows) {
  std::mt19937 random(4);
  for (int i = 0; i < 1000; ++i) {
    const float largest = std::bit_cast<float>(static_cast<uint32_t>(random()) % 0x7F800000u);
    std::vector<float> values(static_cast<size_t>(kNf4BlockElems), largest / 3);
    values[7] = values[40] = i % 2 == 0 ? largest : -largest;
    for (const float value :
         Decoded(QuantizedFormat::kNf4, Encoded(QuantizedFormat::kNf4, values), 0, values.size(), values.size())) {
      ASSERT_LE(std::abs(value), largest);
    }
  }
}

TEST(Nf4Test, EndsOfTheRange) {
  const auto encoded = [](float value) {
    std::vector<float> values(64, 0.0f);
    values[3] = value;
    const std::vector<std::byte> bytes = Encoded(QuantizedFormat::kNf4, values);
    return std::pair(std::to_integer<int>(bytes[32]) | std::to_integer<int>(bytes[33]) << 8,
                     std::to_integer<int>(bytes[1]) >> 4);
  };
  EXPECT_EQ(encoded(0x1p-120f), std::pair(7 << 7, 15));
  EXPECT_EQ(encoded(0x1.fffffep-121f), std::pair(0, kNf4Zero));
  EXPECT_EQ(encoded(-0x1.fffffep-121f), std::pair(0, kNf4Zero));
  EXPECT_EQ(encoded(-0.0f), std::pair(0, kNf4Zero));
  EXPECT_EQ(encoded(-std::numeric_limits<float>::max()), std::pair(0x7F7F, 0));  // and not infinity
  EXPECT_EQ(encoded(1.999f), std::pair(0x3FFF, 15));                             // toward zero
  EXPECT_EQ(encoded(65504), std::pair(0x477F, 15));                              // 65280
}

// In the middle of two the lower code, and what is next to it goes where it is nearer.
TEST(Nf4Test, TiesGoToTheLowerCode) {
  const float middle = (Nf4Number(8) + Nf4Number(9)) / 2;
  std::vector<float> values(64, 0.0f);
  values[0] = 1;
  values[2] = middle;
  values[4] = std::nextafter(middle, 1.0f);
  const std::vector<std::byte> bytes = Encoded(QuantizedFormat::kNf4, values);
  EXPECT_EQ(bytes[1], std::byte{0x78});
  EXPECT_EQ(bytes[2], std::byte{0x79});
}

// The codes of a run lie together, its scales behind them; then comes the next run.
TEST(Nf4Test, PlacesFillTheArray) {
  const int64_t num_elems = kNf4RunElems + 2 * kNf4BlockElems;
  EXPECT_EQ(Nf4Bytes(num_elems), num_elems / 64 * 34);
  const Nf4Place last_of_first = Nf4Place::Of(kNf4RunElems - kNf4BlockElems, num_elems);
  EXPECT_EQ(last_of_first.codes, (kNf4RunElems - kNf4BlockElems) / 2);
  EXPECT_EQ(last_of_first.scale, Nf4Bytes(kNf4RunElems) - 2);
  const Nf4Place last = Nf4Place::Of(kNf4RunElems + kNf4BlockElems, num_elems);
  EXPECT_EQ(last.codes, Nf4Bytes(kNf4RunElems) + kNf4BlockElems / 2);
  EXPECT_EQ(last.scale, Nf4Bytes(num_elems) - 2);
}

}  // namespace
}  // namespace eps
