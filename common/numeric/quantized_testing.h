#ifndef EPS_COMMON_NUMERIC_QUANTIZED_TESTING_H_
#define EPS_COMMON_NUMERIC_QUANTIZED_TESTING_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/quantized.h"

// What tests of quantized formats share: whole arrays of values.
namespace eps {

inline int64_t QuantizedElems(size_t num_values) {
  return (static_cast<int64_t>(num_values) + kQuantizedBlockElems - 1) / kQuantizedBlockElems * kQuantizedBlockElems;
}

inline std::vector<std::byte> Encoded(QuantizedFormat format, const std::vector<float>& values) {
  const int64_t num_elems = QuantizedElems(values.size());
  std::vector<std::byte> bytes(static_cast<size_t>(QuantizedBytes(format, num_elems)), std::byte{0xA5});
  EncodeQuantized(format, values, 0, num_elems, bytes.data());
  return bytes;
}

// `count` values from `first` on, of an array of `of`.
inline std::vector<float> Decoded(QuantizedFormat format, const std::vector<std::byte>& bytes, int64_t first,
                                  size_t count, size_t of) {
  std::vector<float> values(count);
  DecodeQuantized(format, bytes.data(), first, QuantizedElems(of), absl::MakeSpan(values));
  return values;
}

// Of all sizes, and with blocks of zeros among them.
inline std::vector<float> ValuesOfAllSizes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t block = i / static_cast<size_t>(kQuantizedBlockElems);
    values[i] = block % 7 == 3 ? 0 : std::ldexp(normal(random), static_cast<int>(block * 37 % 200) - 100);
  }
  return values;
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_QUANTIZED_TESTING_H_
