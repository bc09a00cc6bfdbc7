#ifndef EPS_SERVER_OPTIMIZER_MOMENT_ROUNDING_H_
#define EPS_SERVER_OPTIMIZER_MOMENT_ROUNDING_H_

#include <bit>
#include <cstdint>

#include "common/base/ids.h"
#include "common/numeric/bf16.h"
#include "common/numeric/philox.h"

namespace eps::server {

// How moments that are kept in bf16 are rounded: up with a probability that is the part of a unit they lie above the number
// below, so that the number kept is right on average (stochastic rounding: Gupta et al., ICML 2015). To nearest, a second
// moment would stand still: with beta2 = 0.999 a step changes it by less than the half unit, 2^-9 of it, that would round away.
//
// The random bits are a function of (seed, step, blob, element): the same for any threads and vector width, after a
// resume, and in a step that is made again.

// One of them for each blob of a step.
constexpr uint32_t MomentKey(uint64_t seed, StepId step, BlobId blob) {
  // Dropouts' keys have vnodes from 0 on, and that of dropped layers (common/model/layer_drop.cc) is -1.
  constexpr int32_t kMoments = -2;
  return RandomKey{.seed = seed, .step = step.value(), .vnode = kMoments, .layer = blob.value()}.philox().k0;
}

// Of the element with that number in its blob, for both its moments: each is right on average, and what one is kept too large
// the other is, too. An element and the one 16 behind it share a word of 32 random bits, as computing them is what an update
// with bf16 moments waits for; the mixing is the finaliser of MurmurHash3, which maps no two words to one.
inline constexpr int64_t kMomentNoiseUnit = 32;  // elements whose noise is made at once
constexpr uint16_t MomentNoise(uint32_t key, int64_t elem) {
  const int64_t pair = elem / 32 * 16 + elem % 16;
  uint32_t x = key + static_cast<uint32_t>(pair);
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  x ^= x >> 16;
  return static_cast<uint16_t>(elem % 32 < 16 ? x : x >> 16);
}

// Away from zero where the bits that are dropped and the noise make a unit.
constexpr Bf16 RoundMoment(float value, uint16_t noise) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + noise) >> 16)};
}

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_MOMENT_ROUNDING_H_
