#ifndef EPS_COMMON_NUMERIC_NF4_H_
#define EPS_COMMON_NUMERIC_NF4_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"

// Weights in 4.25 bits: QLoRA's 4-bit NormalFloat (Dettmers et al., arXiv:2305.14314, section 3 and appendix E). 64
// elements in a row share a scale, their largest value without its sign; each is the nearest of 16 numbers, quantiles of
// a normal distribution that has its end at that scale. The scale is a bf16, where the paper's is a fp32, or 8 bits and
// a second scale. docs/formats.md has the bytes.
//
// A value is a number of the 16 times the scale, rounded to bf16, whatever computes with it. As the largest of a block
// is its scale, what was decoded encodes to the very bytes that it came from: a checkpoint may hold either form. The
// scale is rounded toward zero, so that nothing becomes larger than the largest was, and what fp16 held it holds still.
// Values are off by 0.16 times the scale at most: half of what lies between -1 and the next number, and the rounding.
namespace eps {

inline constexpr int64_t kNf4BlockElems = 64;
// Of an array the codes of so many elements lie together, half a byte each, and behind them their scales, two bytes a
// block; then those of the next elements. The last ones may be fewer: a multiple of kNf4BlockElems.
inline constexpr int64_t kNf4RunElems = 262144;

// Of whole runs, and of the last one.
constexpr int64_t Nf4Bytes(int64_t num_elems) { return num_elems / 2 + num_elems / kNf4BlockElems * 2; }

inline constexpr int kNf4Codes = 16;
// A function, and no array, as device code may call it.
constexpr float Nf4Number(int code) {
  constexpr float kNumbers[kNf4Codes] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return kNumbers[code];
}
// The value of a code, of which `number` is Nf4Number. A scale is finite, and 0 or at least 2^-120: no value is
// denormal.
constexpr float Nf4Value(float number, Bf16 scale) { return ToFloat(ToBf16TiesToEven(number * ToFloat(scale))); }

// Of a block whose largest value, without its sign, has these bits of fp32. It is finite.
constexpr Bf16 Nf4Scale(uint32_t max_bits) {
  constexpr uint32_t kSmallest = 7u << 23;  // 2^-120
  return {static_cast<uint16_t>(max_bits < kSmallest ? 0 : max_bits >> 16)};
}

// The codes and the scale of one block within an array.
struct Nf4Place {
  int64_t codes = 0, scale = 0;  // bytes from the array's start on

  // Of the block that element `elem`, a multiple of kNf4BlockElems, begins.
  static constexpr Nf4Place Of(int64_t elem, int64_t num_elems) {
    const int64_t run = elem / kNf4RunElems * kNf4RunElems, within = elem - run, left = num_elems - run;
    const int64_t base = Nf4Bytes(run);
    return {.codes = base + within / 2,
            .scale = base + (left < kNf4RunElems ? left : kNf4RunElems) / 2 + within / kNf4BlockElems * 2};
  }
};

// One block: codes, to nearest, and of two that are as near the lower; the first of each pair of elements in a byte's
// lower half. Returns the scale. Values are finite, as whoever loads them has seen to (ModelFolder). The loops over
// elements are the inner ones, so that compilers make vectors of them.
inline Bf16 EncodeNf4Block(const float* values, std::byte* codes) {
  int32_t max_bits = 0;
  for (int64_t i = 0; i < kNf4BlockElems; ++i) {
    max_bits = std::max(max_bits, std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF);
  }
  const Bf16 scale = Nf4Scale(static_cast<uint32_t>(max_bits));
  const float divisor = scale.bits == 0 ? 1 : ToFloat(scale);  // by 1 all of that block are next to 0
  float parts[kNf4BlockElems];
  for (int64_t i = 0; i < kNf4BlockElems; ++i) parts[i] = values[i] / divisor;
  int32_t nearest[kNf4BlockElems] = {};
  for (int code = 0; code + 1 < kNf4Codes; ++code) {
    const float middle = (Nf4Number(code) + Nf4Number(code + 1)) / 2;
    for (int64_t i = 0; i < kNf4BlockElems; ++i) nearest[i] += parts[i] > middle ? 1 : 0;
  }
  for (int64_t i = 0; i < kNf4BlockElems / 2; ++i) {
    codes[i] = static_cast<std::byte>(nearest[2 * i] | nearest[2 * i + 1] << 4);
  }
  return scale;
}

// Of an array of `num_elems`, writes those from `first_elem` on: whole blocks.
inline void EncodeNf4(absl::Span<const float> values, int64_t first_elem, int64_t num_elems, std::byte* array) {
  for (; !values.empty(); values.remove_prefix(kNf4BlockElems), first_elem += kNf4BlockElems) {
    const Nf4Place at = Nf4Place::Of(first_elem, num_elems);
    const Bf16 scale = EncodeNf4Block(values.data(), array + at.codes);
    std::memcpy(array + at.scale, &scale.bits, sizeof(scale.bits));
  }
}

// Reads elements [first_elem, first_elem + values.size()), any, of an array of `num_elems`.
inline void DecodeNf4(const std::byte* array, int64_t first_elem, int64_t num_elems, absl::Span<float> values) {
  for (size_t i = 0; i < values.size();) {
    const int64_t elem = first_elem + static_cast<int64_t>(i), within = elem % kNf4BlockElems;
    const Nf4Place at = Nf4Place::Of(elem - within, num_elems);
    Bf16 scale;
    std::memcpy(&scale.bits, array + at.scale, sizeof(scale.bits));
    float of_codes[kNf4Codes];
    for (int code = 0; code < kNf4Codes; ++code) of_codes[code] = Nf4Value(Nf4Number(code), scale);
    for (int64_t k = within; k < kNf4BlockElems && i < values.size(); ++k, ++i) {
      const auto both = std::to_integer<unsigned>(array[at.codes + k / 2]);
      values[i] = of_codes[k % 2 == 0 ? both & 15 : both >> 4];
    }
  }
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_NF4_H_
