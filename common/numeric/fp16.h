#ifndef EPS_COMMON_NUMERIC_FP16_H_
#define EPS_COMMON_NUMERIC_FP16_H_

#include <bit>
#include <cstdint>

namespace eps {

// IEEE binary16 as its bits: 1 sign, 5 exponent, 10 mantissa.
struct Fp16 {
  uint16_t bits = 0;
};

// Exact: every binary16 value, infinities and NaNs included, is a fp32 value.
constexpr float ToFloat(Fp16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu, mantissa = value.bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
  // Subnormal: mantissa * 2^-24, which is a normal fp32 value, so flushing denormals does not touch
  // it.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

// To nearest, ties to even; what is too large becomes infinity, a NaN stays one.
constexpr Fp16 ToFp16(float value) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  constexpr uint32_t kTooLarge = 0x477FF000u;        // 65520: halfway from the largest binary16 to the next power
  constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  constexpr uint32_t kHalf = 0x3F000000u;  // one unit in the last place of 0.5 is binary16's smallest subnormal
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > kInfinity) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= kTooLarge) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < kSmallestNormal) {
    // The sum rounds as binary16 would: both have the same last place.
    const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kHalf);
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - kHalf))};
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t rounded = magnitude - ((127u - 15u) << 23) + 0xFFFu + odd;
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_FP16_H_
