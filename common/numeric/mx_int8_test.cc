#include "common/numeric/mx_int8.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/numeric/quantized.h"
#include "common/numeric/quantized_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(MxInt8Test, TheExampleOfTheFormatsPage) {
  std::vector<float> values(64, 0.0f);
  values[0] = 1.0f;
  values[1] = -0.4f;
  values[2] = 0.0078125f;  // half of the unit: to even
  values[3] = 1.999f;      // 127.9 units, and none has 128
  const std::vector<std::byte> bytes = Encoded(QuantizedFormat::kMxInt8, values);
  ASSERT_EQ(bytes.size(), 66u);
  EXPECT_EQ(bytes[64], std::byte{127});
  EXPECT_EQ(bytes[65], std::byte{0});
  EXPECT_EQ(bytes[0], std::byte{64});
  EXPECT_EQ(bytes[1], std::byte{0xE6});  // -26
  EXPECT_EQ(bytes[2], std::byte{0});
  EXPECT_EQ(bytes[3], std::byte{127});
  EXPECT_EQ(Decoded(QuantizedFormat::kMxInt8, bytes, 0, 5, 64), (std::vector<float>{1, -0.40625f, 0, 1.984375f, 0}));
}

TEST(MxInt8Test, IsOffByHalfAUnitAtMost) {
  const std::vector<float> values = ValuesOfAllSizes(10000, 1);
  const std::vector<float> decoded =
      Decoded(QuantizedFormat::kMxInt8, Encoded(QuantizedFormat::kMxInt8, values), 0, values.size(), values.size());
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

TEST(MxInt8Test, EndsOfTheRange) {
  const auto encoded = [](float value) {
    std::vector<float> values(64, 0.0f);
    values[3] = value;
    const std::vector<std::byte> bytes = Encoded(QuantizedFormat::kMxInt8, values);
    return std::pair(std::to_integer<int>(bytes[64]), static_cast<int>(static_cast<int8_t>(bytes[3])));
  };
  EXPECT_EQ(encoded(0x1p-120f), std::pair(7, 64));
  EXPECT_EQ(encoded(-0x1.fcp-120f), std::pair(7, -127));
  EXPECT_EQ(encoded(0x1.fffffep-121f), std::pair(0, 0));
  EXPECT_EQ(encoded(-std::numeric_limits<float>::max()), std::pair(254, -127));
  EXPECT_EQ(encoded(-1.9999f), std::pair(127, -127));   // and not -128, which 1 has no counterpart of
  EXPECT_EQ(encoded(1.9921875f), std::pair(127, 127));  // 127.5: no even one above
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
