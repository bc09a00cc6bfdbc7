#include "common/numeric/quantized.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/quantized_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class QuantizedTest : public ::testing::TestWithParam<QuantizedFormat> {};
INSTANTIATE_TEST_SUITE_P(, QuantizedTest, ::testing::Values(QuantizedFormat::kMxInt8, QuantizedFormat::kNf4),
                         [](const auto& format) { return std::string(NameOf(format.param)); });

TEST_P(QuantizedTest, WhatWasDecodedIsABf16AndEncodesToTheSameBytes) {
  std::vector<float> values = ValuesOfAllSizes(static_cast<size_t>(kQuantizedRunElems + 3 * kQuantizedBlockElems), 2);
  values[0] = std::numeric_limits<float>::max();
  values[70] = -std::numeric_limits<float>::max();
  values[130] = std::numeric_limits<float>::denorm_min();
  values[1000] = 65504;
  const std::vector<std::byte> bytes = Encoded(GetParam(), values);
  const std::vector<float> decoded = Decoded(GetParam(), bytes, 0, values.size(), values.size());
  EXPECT_LE(decoded[1000], 65504);
  for (const float value : decoded) {
    ASSERT_EQ(std::bit_cast<uint32_t>(ToFloat(ToBf16(value))), std::bit_cast<uint32_t>(value)) << value;
    ASSERT_TRUE(value == 0 || std::isnormal(value)) << value;
  }
  EXPECT_EQ(Encoded(GetParam(), decoded), bytes);
}

TEST_P(QuantizedTest, PartsAreThoseOfTheWhole) {
  const size_t count = static_cast<size_t>(2 * kQuantizedRunElems + 5 * kQuantizedBlockElems);
  const std::vector<float> values = ValuesOfAllSizes(count, 3);
  const std::vector<std::byte> whole = Encoded(GetParam(), values);
  std::vector<std::byte> parts(whole.size());
  for (size_t first = 0; first < count;) {
    const size_t length = std::min(count - first, static_cast<size_t>(kQuantizedBlockElems) * 617);
    EncodeQuantized(GetParam(), absl::MakeSpan(values).subspan(first, length), static_cast<int64_t>(first),
                    static_cast<int64_t>(count), parts.data());
    first += length;
  }
  EXPECT_EQ(parts, whole);
  const std::vector<float> decoded = Decoded(GetParam(), whole, 0, count, count);
  for (const auto& [first, length] :
       {std::pair<size_t, size_t>{0, 1}, {31, 2}, {63, 2}, {kQuantizedRunElems - 5, 177}, {count - 3, 3}}) {
    const auto begin = decoded.begin() + static_cast<int64_t>(first);
    EXPECT_EQ(Decoded(GetParam(), whole, static_cast<int64_t>(first), length, count),
              std::vector<float>(begin, begin + static_cast<int64_t>(length)));
  }
}

// Behind the last value of an array whose tensors leave a gap.
TEST_P(QuantizedTest, WhatTheLastBlockLacksIsZero) {
  for (const size_t count : {65, 70, 100, 127}) {
    const std::vector<float> values(count, -3.0f);
    const std::vector<float> decoded = Decoded(GetParam(), Encoded(GetParam(), values), 0, 128, count);
    EXPECT_EQ(decoded[count - 1], -3.0f);
    EXPECT_TRUE(std::all_of(decoded.begin() + static_cast<int64_t>(count), decoded.end(),
                            [](float value) { return value == 0; }));
  }
}

}  // namespace
}  // namespace eps
