#ifndef EPS_COMMON_NUMERIC_MX_INT8_H_
#define EPS_COMMON_NUMERIC_MX_INT8_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

// Weights in 8.25 bits: MXINT8 of the OCP Microscaling Formats (MX) specification, version 1.0 (Rouhani et al.,
// arXiv:2310.10537). 32 elements in a row share a power of two, an E8M0 exponent; each is a signed integer of 8 bits,
// of which 1/64 is that power of two's. docs/formats.md has the bytes.
//
// A value is an integer of at most 127 times a power of two, so that bf16 holds each exactly, and what was decoded, as
// fp32 or bf16, encodes to the very bytes that it came from: a checkpoint may hold either form. The integers' unit is
// 1/128 to 1/64 of the block's largest value. Values are off by half a unit at most; one of more than 127.5 becomes
// 127, off by less than one.
namespace eps {

inline constexpr int64_t kMxBlockElems = 32;
// Of an array the codes of so many elements lie together, one byte each, and behind them their exponents, one byte a
// block; then those of the next elements. The last ones may be fewer: a multiple of kMxBlockElems.
inline constexpr int64_t kMxRunElems = 262144;

// Of whole runs, and of the last one.
constexpr int64_t MxInt8Bytes(int64_t num_elems) { return num_elems + num_elems / kMxBlockElems; }

// What an element of a block of `exponent` is multiplied by. An exponent below 7 is a block of zeros: no value is
// denormal.
constexpr float MxInt8Unit(uint8_t exponent) {
  return std::bit_cast<float>((std::max(uint32_t{exponent}, 6u) - 6) << 23);
}

// Of a block whose largest value, without its sign, has these bits of fp32. It is finite.
constexpr uint8_t MxInt8Exponent(uint32_t max_bits) {
  const uint32_t exponent = max_bits >> 23;
  return static_cast<uint8_t>(exponent < 7 ? 0 : exponent);
}

// The codes and the exponent of one block within an array.
struct MxInt8Place {
  int64_t codes = 0, exponent = 0;  // bytes from the array's start on

  // Of the block that element `elem`, a multiple of kMxBlockElems, begins.
  static constexpr MxInt8Place Of(int64_t elem, int64_t num_elems) {
    const int64_t run = elem / kMxRunElems * kMxRunElems, within = elem - run;
    const int64_t base = MxInt8Bytes(run);
    return {.codes = base + within, .exponent = base + std::min(kMxRunElems, num_elems - run) + within / kMxBlockElems};
  }
};

// One block: codes, to nearest, ties to even; returns the exponent. Values are finite, as whoever loads them has seen
// to (ModelFolder). Branches and calls are kept out of the loops, so that compilers make vectors of them: 1.3 ns a
// value where one with std::nearbyint takes 3.1.
inline uint8_t EncodeMxInt8Block(const float* values, std::byte* codes) {
  int32_t max_bits = 0;
  for (int64_t i = 0; i < kMxBlockElems; ++i) {
    max_bits = std::max(max_bits, std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF);
  }
  const uint8_t exponent = MxInt8Exponent(static_cast<uint32_t>(max_bits));
  // 1 over the unit, which no exponent that is not 0 takes out of the normal numbers.
  const float scale = exponent == 0 ? 0 : std::bit_cast<float>((260u - exponent) << 23);
  // Added to a number below 2^22 it leaves the nearest integer in the lowest bits of the sum.
  constexpr float kRounder = 0x1.8p23f;
  for (int64_t i = 0; i < kMxBlockElems; ++i) {
    const int32_t nearest = std::bit_cast<int32_t>(values[i] * scale + kRounder) - std::bit_cast<int32_t>(kRounder);
    codes[i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(nearest, -127, 127)));
  }
  return exponent;
}

// Of an array of `num_elems`, writes those from `first_elem` on: whole blocks.
inline void EncodeMxInt8(absl::Span<const float> values, int64_t first_elem, int64_t num_elems, std::byte* array) {
  for (; !values.empty(); values.remove_prefix(kMxBlockElems), first_elem += kMxBlockElems) {
    const MxInt8Place at = MxInt8Place::Of(first_elem, num_elems);
    array[at.exponent] = static_cast<std::byte>(EncodeMxInt8Block(values.data(), array + at.codes));
  }
}

// Reads elements [first_elem, first_elem + values.size()), any, of an array of `num_elems`.
inline void DecodeMxInt8(const std::byte* array, int64_t first_elem, int64_t num_elems, absl::Span<float> values) {
  for (size_t i = 0; i < values.size();) {
    const int64_t elem = first_elem + static_cast<int64_t>(i), within = elem % kMxBlockElems;
    const MxInt8Place at = MxInt8Place::Of(elem - within, num_elems);
    const float unit = MxInt8Unit(static_cast<uint8_t>(array[at.exponent]));
    for (int64_t k = within; k < kMxBlockElems && i < values.size(); ++k, ++i) {
      values[i] = static_cast<float>(static_cast<int8_t>(array[at.codes + k])) * unit;
    }
  }
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_MX_INT8_H_
