#include "common/numeric/mx_int8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

int64_t RoundedUp(size_t num_elems) {
  return (static_cast<int64_t>(num_elems) + kMxBlockElems - 1) / kMxBlockElems * kMxBlockElems;
}

std::vector<std::byte> Encoded(const std::vector<float>& values) {
  const int64_t num_elems = RoundedUp(values.size());
  std::vector<std::byte> bytes(static_cast<size_t>(MxInt8Bytes(num_elems)), std::byte{0xA5});
  EncodeMxInt8(values, 0, num_elems, bytes.data());
  return bytes;
}

std::vector<float> Decoded(const std::vector<std::byte>& bytes, int64_t first, size_t count, size_t of) {
  std::vector<float> values(count);
  DecodeMxInt8(bytes.data(), first, RoundedUp(of), absl::MakeSpan(values));
  return values;
}

// Of all sizes, and with blocks of zeros among them.
std::vector<float> Values(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t block = i / static_cast<size_t>(kMxBlockElems);
    values[i] = block % 7 == 3 ? 0 : std::ldexp(normal(random), static_cast<int>(block * 37 % 200) - 100);
  }
  return values;
}

TEST(MxInt8Test, TheExampleOfTheFormatsPage) {
  std::vector<float> values(64, 0.0f);
  values[0] = 1.0f;
  values[1] = -0.4f;
  values[2] = 0.0078125f;  // half of the unit: to even
  values[3] = 1.999f;      // 127.9 units, and none has 128
  const std::vector<std::byte> bytes = Encoded(values);
  ASSERT_EQ(bytes.size(), 66u);
  EXPECT_EQ(bytes[64], std::byte{127});
  EXPECT_EQ(bytes[65], std::byte{0});
  EXPECT_EQ(bytes[0], std::byte{64});
  EXPECT_EQ(bytes[1], std::byte{0xE6});  // -26
  EXPECT_EQ(bytes[2], std::byte{0});
  EXPECT_EQ(bytes[3], std::byte{127});
  EXPECT_EQ(Decoded(bytes, 0, 5, 64), (std::vector<float>{1, -0.40625f, 0, 1.984375f, 0}));
}

TEST(MxInt8Test, IsOffByHalfAUnitAtMost) {
  const std::vector<float> values = Values(10000, 1);
  const std::vector<float> decoded = Decoded(Encoded(values), 0, values.size(), values.size());
  for (size_t block = 0; block < values.size(); block += kMxBlockElems) {
    const size_t end = std::min(values.size(), block + static_cast<size_t>(kMxBlockElems));
    float largest = 0;
    for (size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    const float unit = largest == 0 ? 0 : std::ldexp(1.0f, std::ilogb(largest) - 6);
    for (size_t i = block; i < end; ++i) {
      const float bound = std::abs(values[i]) > 127.5f * unit ? unit : unit / 2;
      EXPECT_LE(std::abs(decoded[i] - values[i]), bound) << i;
    }
  }
}

TEST(MxInt8Test, WhatWasDecodedIsABf16AndEncodesToTheSameBytes) {
  std::vector<float> values = Values(static_cast<size_t>(kMxRunElems + 3 * kMxBlockElems), 2);
  values[0] = std::numeric_limits<float>::max();
  values[40] = -std::numeric_limits<float>::max();
  values[70] = std::numeric_limits<float>::denorm_min();
  values[100] = 65504;
  const std::vector<std::byte> bytes = Encoded(values);
  const std::vector<float> decoded = Decoded(bytes, 0, values.size(), values.size());
  for (const float value : decoded) {
    ASSERT_EQ(std::bit_cast<uint32_t>(ToFloat(ToBf16(value))), std::bit_cast<uint32_t>(value)) << value;
    ASSERT_TRUE(value == 0 || std::isnormal(value)) << value;
  }
  EXPECT_LE(decoded[100], 65504);
  EXPECT_EQ(Encoded(decoded), bytes);
}

TEST(MxInt8Test, EndsOfTheRange) {
  const auto encoded = [](float value) {
    std::vector<float> values(32, 0.0f);
    values[3] = value;
    const std::vector<std::byte> bytes = Encoded(values);
    return std::pair(std::to_integer<int>(bytes[32]), static_cast<int>(static_cast<int8_t>(bytes[3])));
  };
  EXPECT_EQ(encoded(0x1p-120f), std::pair(7, 64));
  EXPECT_EQ(encoded(-0x1.fcp-120f), std::pair(7, -127));
  EXPECT_EQ(encoded(0x1.fffffep-121f), std::pair(0, 0));
  EXPECT_EQ(encoded(-std::numeric_limits<float>::max()), std::pair(254, -127));
  EXPECT_EQ(encoded(-1.9999f), std::pair(127, -127));   // and not -128, which 1 has no counterpart of
  EXPECT_EQ(encoded(1.9921875f), std::pair(127, 127));  // 127.5: no even one above
}

TEST(MxInt8Test, PartsAreThoseOfTheWhole) {
  const size_t count = static_cast<size_t>(2 * kMxRunElems + 5 * kMxBlockElems);
  const std::vector<float> values = Values(count, 3);
  const std::vector<std::byte> whole = Encoded(values);
  std::vector<std::byte> parts(whole.size());
  for (size_t first = 0; first < count;) {
    const size_t length = std::min(count - first, static_cast<size_t>(kMxBlockElems) * 1237);
    EncodeMxInt8(absl::MakeSpan(values).subspan(first, length), static_cast<int64_t>(first),
                 static_cast<int64_t>(count), parts.data());
    first += length;
  }
  EXPECT_EQ(parts, whole);
  const std::vector<float> decoded = Decoded(whole, 0, count, count);
  for (const auto& [first, length] :
       {std::pair<size_t, size_t>{0, 1}, {31, 2}, {kMxRunElems - 5, 77}, {count - 3, 3}}) {
    const auto begin = decoded.begin() + static_cast<int64_t>(first);
    EXPECT_EQ(Decoded(whole, static_cast<int64_t>(first), length, count),
              std::vector<float>(begin, begin + static_cast<int64_t>(length)));
  }
}

// The codes of a run lie together, its exponents behind them; then comes the next run.
TEST(MxInt8Test, PlacesFillTheArray) {
  const int64_t num_elems = kMxRunElems + 2 * kMxBlockElems;
  EXPECT_EQ(MxInt8Bytes(num_elems), num_elems / 32 * 33);
  const MxInt8Place last_of_first = MxInt8Place::Of(kMxRunElems - kMxBlockElems, num_elems);
  EXPECT_EQ(last_of_first.codes, kMxRunElems - kMxBlockElems);
  EXPECT_EQ(last_of_first.exponent, MxInt8Bytes(kMxRunElems) - 1);
  const MxInt8Place last = MxInt8Place::Of(kMxRunElems + kMxBlockElems, num_elems);
  EXPECT_EQ(last.codes, MxInt8Bytes(kMxRunElems) + kMxBlockElems);
  EXPECT_EQ(last.exponent, MxInt8Bytes(num_elems) - 1);
}

}  // namespace
}  // namespace eps
