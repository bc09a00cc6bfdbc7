#ifndef EPS_SERVER_OPTIMIZER_MOMENT_ROUNDING_H_
#define EPS_SERVER_OPTIMIZER_MOMENT_ROUNDING_H_

#include <bit>
#include <cstdint>

#include "common/base/ids.h"
#include "common/numeric/bf16.h"
#include "common/numeric/philox.h"

namespace eps::server {

// How moments that are kept in bf16 or fp8 (common/numeric/fp8_block.h) are rounded: up with a probability that is the
// part of a unit they lie above the number below, so that the number kept is right on average (stochastic rounding:
// Gupta et al., ICML 2015). To nearest, a second moment would stand still: with beta2 = 0.999 a step changes it by less
// than the half unit, 2^-9 of it, that would round away.
//
// The random bits are a function of (seed, step, blob, element): the same for any threads and vector width, after a
// resume, and in a step that is made again.

// One of them for each blob of a step.
constexpr uint32_t MomentKey(uint64_t seed, StepId step, BlobId blob) {
  return RandomKey{.seed = seed, .step = step.value(), .vnode = Whole::kMoments, .layer = blob.value()}.philox().k0;
}

// Of the element with that number in its blob, for both its moments. Of each 32 elements in a row, element i and the
// one 16 behind it have the halves of one word, as making words is what an update with narrow moments waits for. Words
// are mixed by the finaliser of MurmurHash3, which makes no two numbers one.
inline constexpr int64_t kMomentNoiseUnit = 32;  // elements whose noise is made at once
constexpr uint16_t MomentNoise(uint32_t key, int64_t elem) {
  constexpr int64_t kWords = kMomentNoiseUnit / 2;
  uint32_t x = key + static_cast<uint32_t>(elem / kMomentNoiseUnit * kWords + elem % kWords);
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  x ^= x >> 16;
  return static_cast<uint16_t>(elem % kMomentNoiseUnit < kWords ? x : x >> 16);
}

// Away from zero where the bits that are dropped and the noise make a unit. Infinities stay; beyond the largest bf16
// number lies infinity; a NaN may come out as a number: gradients that are not finite are found by their squares.
constexpr Bf16 RoundMoment(float value, uint16_t noise) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + noise) >> 16)};
}

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_MOMENT_ROUNDING_H_
