#ifndef EPS_COMMON_NUMERIC_FP8_BLOCK_H_
#define EPS_COMMON_NUMERIC_FP8_BLOCK_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"

// Optimizer moments in 8 bits: floats of 8 bits, and an exponent that 32 of them in a row share, as in microscaling formats
// (arXiv:2310.10537). docs/formats.md has the bytes.
//
//   block   32 codes, then the shared exponent: 33 bytes
//   signed    sign, 4 bits of exponent, 3 of mantissa: a code m without its sign is (1 + m % 8 / 8) 2^(m / 8) of the smallest
//             power of two, and 0 is 0. What is below the smallest is 0.
//   positive  5 bits of exponent, 3 of mantissa, the same without a zero. What is below the smallest, 0 too, is the smallest:
//             these are second moments, which others are divided by. A block of zeros has zeros.
//
// The values are fp32 numbers whose lowest 20 bits are zero, so that bf16 holds each exactly.
namespace eps {

enum class Fp8Kind { kSigned, kPositive };

inline constexpr int64_t kFp8BlockElems = 32;
inline constexpr int64_t kFp8BlockBytes = kFp8BlockElems + 1;
inline constexpr int kFp8DroppedBits = 20;  // of a fp32 number

// Exponents that a code tells apart, less one.
constexpr uint32_t Fp8ExponentSpan(Fp8Kind kind) { return kind == Fp8Kind::kSigned ? 15 : 31; }

// Of a block whose largest value, without its sign, has these bits: fp32's exponent of the smallest code, such that the
// largest one, rounded up, has one too.
constexpr uint8_t Fp8SharedExponent(Fp8Kind kind, uint32_t max_bits) {
  const uint32_t largest = (max_bits + (1u << kFp8DroppedBits) - 1) >> 23;
  return static_cast<uint8_t>(largest - std::min(largest, Fp8ExponentSpan(kind)));
}

// Away from zero where the bits that are dropped and the noise, which lies `kFp8DroppedBits` - 16 bits higher, make a unit:
// with noise of 0x8000 to nearest; evenly distributed noise makes it right on average, from the smallest power of two on: a
// signed one that is less than 1.125 of it is 0 or that. A positive one's sign is dropped.
constexpr uint8_t ToFp8(Fp8Kind kind, float value, uint8_t shared_exponent, uint16_t noise) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto above = static_cast<int32_t>((bits & 0x7FFFFFFFu) + (uint32_t{noise} << (kFp8DroppedBits - 16)) -
                                          (uint32_t{shared_exponent} << 23));
  const uint32_t code = static_cast<uint32_t>(std::max(above, 0)) >> kFp8DroppedBits;
  return static_cast<uint8_t>(kind == Fp8Kind::kSigned ? code | (bits >> 24 & 0x80u) : code);
}

constexpr Bf16 FromFp8(Fp8Kind kind, uint8_t code, uint8_t shared_exponent) {
  constexpr int kShift = kFp8DroppedBits - 16;
  const auto smallest = static_cast<uint32_t>(shared_exponent << 7);
  if (kind == Fp8Kind::kPositive) return {static_cast<uint16_t>((uint32_t{code} << kShift) + smallest)};
  const uint32_t magnitude = code & 0x7Fu, sign = static_cast<uint32_t>(code & 0x80u) << 8;
  return {static_cast<uint16_t>(sign | (magnitude == 0 ? 0 : (magnitude << kShift) + smallest))};
}

// Reads elements [first_elem, first_elem + values.size()) of what lies at `blocks`.
inline void DecodeFp8(Fp8Kind kind, const std::byte* blocks, int64_t first_elem, absl::Span<Bf16> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t elem = first_elem + static_cast<int64_t>(i);
    const std::byte* const block = blocks + elem / kFp8BlockElems * kFp8BlockBytes;
    values[i] =
        FromFp8(kind, static_cast<uint8_t>(block[elem % kFp8BlockElems]), static_cast<uint8_t>(block[kFp8BlockElems]));
  }
}

// Writes whole blocks, to nearest; what the last one lacks of values is zero. What DecodeFp8 gave of whole blocks comes out
// as it was.
inline void EncodeFp8(Fp8Kind kind, absl::Span<const float> values, std::byte* blocks) {
  for (; !values.empty(); blocks += kFp8BlockBytes) {
    const absl::Span<const float> block = values.first(std::min<size_t>(values.size(), kFp8BlockElems));
    values.remove_prefix(block.size());
    uint32_t max_bits = 0;
    for (const float value : block) max_bits = std::max(max_bits, std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu);
    const uint8_t shared_exponent = Fp8SharedExponent(kind, max_bits);
    for (size_t i = 0; i < kFp8BlockElems; ++i) {
      blocks[i] = static_cast<std::byte>(ToFp8(kind, i < block.size() ? block[i] : 0, shared_exponent, 0x8000));
    }
    blocks[kFp8BlockElems] = static_cast<std::byte>(shared_exponent);
  }
}

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_FP8_BLOCK_H_
