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
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
  // Subnormal: mantissa * 2^-24, which is a normal fp32 value, so flushing denormals does not touch
  // it.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_FP16_H_
