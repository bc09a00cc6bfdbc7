#ifndef EPS_COMMON_NUMERIC_BF16_H_
#define EPS_COMMON_NUMERIC_BF16_H_

#include <bit>
#include <cstdint>

namespace eps {

// bfloat16 as its bits. fp32 -> bf16 rounds to nearest, ties away from zero: (bits + 0x8000) >> 16. With
// this rule the 16 bits that the shift drops, kept beside the result, restore the fp32 value exactly; see
// SplitFloat. It is the rounding of weights on the wire and of gradient leaves. A NaN may
// come out as a number: look for non-finite values before rounding.
struct Bf16 {
  uint16_t bits = 0;
};

constexpr Bf16 ToBf16(float value) { return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0x8000u) >> 16)}; }
// The same to nearest, ties to even, as every other program rounds what it writes into a file.
constexpr Bf16 ToBf16TiesToEven(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}
constexpr float ToFloat(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// A fp32 value as its wire form and the rest: Join(Split(x)) == x, bit for bit, for every x.
struct SplitFloat {
  Bf16 wire;
  uint16_t rest = 0;
};
constexpr SplitFloat Split(float value) {
  const uint32_t rounded = std::bit_cast<uint32_t>(value) + 0x8000u;
  return {{static_cast<uint16_t>(rounded >> 16)}, static_cast<uint16_t>(rounded)};
}
constexpr float Join(SplitFloat split) {
  return std::bit_cast<float>((uint32_t{split.wire.bits} << 16 | split.rest) - 0x8000u);
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_BF16_H_
