#ifndef EPS_COMMON_NUMERIC_PHILOX_H_
#define EPS_COMMON_NUMERIC_PHILOX_H_

#include <array>
#include <cstdint>

namespace eps {

// Philox4x32-10, a counter-based generator: 128 random bits as a pure function of (key, counter).
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
struct PhiloxKey {
  uint32_t k0 = 0;
  uint32_t k1 = 0;

  friend constexpr bool operator==(const PhiloxKey&, const PhiloxKey&) = default;
};

constexpr std::array<uint32_t, 4> Philox(PhiloxKey key, std::array<uint32_t, 4> counter) {
  constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMul0} * counter[0];
    const uint64_t product1 = uint64_t{kMul1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key.k0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key.k1, static_cast<uint32_t>(product0)};
    key.k0 += kWeyl0;
    key.k1 += kWeyl1;
  }
  return counter;
}

// Mixes 64 bits into 64 well-spread bits (SplitMix64's finaliser); chain it to key by several numbers.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// In place of a vnode: what is drawn for a step and not for a vnode.
struct Whole {
  static constexpr int32_t kDroppedLayers = -1;  // common/model/layer_drop.h
  static constexpr int32_t kMoments = -2;        // eps_server/optimizer/moment_rounding.h
};

// What a random number of the run depends on, and all it depends on: nothing about placement.
struct RandomKey {
  uint64_t seed = 0;  // the run's
  int64_t step = 0;
  int32_t vnode = 0;  // from 0 on, or a Whole
  int32_t layer = 0;
  int32_t use = 0;  // which dropout of the layer

  constexpr PhiloxKey philox() const {
    uint64_t h = Mix64(seed);
    h = Mix64(h ^ static_cast<uint64_t>(step));
    h = Mix64(h ^ (uint64_t{static_cast<uint32_t>(vnode)} << 32 | static_cast<uint32_t>(layer)));
    h = Mix64(h ^ static_cast<uint32_t>(use));
    return {static_cast<uint32_t>(h), static_cast<uint32_t>(h >> 32)};
  }
};

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_PHILOX_H_
