// Moments as the store keeps them; included once per target.

#if defined(EPS_SERVER_OPTIMIZER_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_SERVER_OPTIMIZER_MOMENTS_INL_H_
#undef EPS_SERVER_OPTIMIZER_MOMENTS_INL_H_
#else
#define EPS_SERVER_OPTIMIZER_MOMENTS_INL_H_
#endif

#include <cstdint>

#include "common/numeric/fp8_block.h"
#include "eps_server/optimizer/lanes-inl.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

// moment_rounding.h: the MomentNoise of kUnitElems elements.
struct UnitNoise {
  Words pairs;
  // Of 16 of them: those of the first 16 are the low halves.
  HWY_INLINE Words Half(int half) const {
    Words noise;
    ForVecs([&](int64_t k) HWY_ATTR {
      noise.v[k] = half != 0 ? hn::ShiftRight<16>(pairs.v[k]) : hn::And(pairs.v[k], hn::Set(DU(), 0xFFFFu));
    });
    return noise;
  }
};

struct NoiseSource {
  Words first;  // of the chunk's first pairs, before mixing
  NoiseSource(const ChunkState& chunk, const UpdateScalars& s) {
    const uint32_t pair = s.moment_key + static_cast<uint32_t>(chunk.first_elem / 2);
    uint32_t lanes[kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      // The middle two of four quarters change places.
      const uint32_t from = kIsByHalves && lane / 4 % 3 != 0 ? lane ^ 12 : lane;
      lanes[lane] = pair + from;
    }
    ForVecs([&](int64_t k) HWY_ATTR { first.v[k] = hn::LoadU(DU(), lanes + k * kVec); });
  }
  // Of elements [i, i + kUnitElems).
  HWY_INLINE UnitNoise Of(int64_t i) const {
    UnitNoise noise;
    ForVecs([&](int64_t k) HWY_ATTR {
      VU x = hn::Add(first.v[k], hn::Set(DU(), static_cast<uint32_t>(i / 2)));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(DU(), 0x85EBCA6Bu));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(DU(), 0xC2B2AE35u));
      noise.pairs.v[k] = hn::Xor(x, hn::ShiftRight<16>(x));
    });
    return noise;
  }
};

// A moment of a chunk, in each format: Open(i) is the unit of elements [i, i + kUnitElems), in which Load(half) and
// Store(half, ...) are of 16 of them, and Close follows the last Store.
struct Fp32Moment {
  static constexpr bool kIsRounded = false;
  struct Unit {
    float* values;
    HWY_INLINE Floats Load(int half) const { return LoadFloats(values + half * kLanes); }
    HWY_INLINE void Store(int half, const Floats& moment, const UnitNoise& /*noise*/) {
      StoreFloats(moment, values + half * kLanes);
    }
    HWY_INLINE void Close(const UnitNoise& /*noise*/) const {}
  };
  float* values;
  explicit Fp32Moment(void* values) : values(static_cast<float*>(values)) {}
  HWY_INLINE Unit Open(int64_t i) const { return {values + i}; }
  HWY_INLINE void Prefetch(int64_t i) const {
    hwy::Prefetch(values + i);
    hwy::Prefetch(values + i + kLanes);
  }
};

// moment_rounding.h: RoundMoment.
struct Bf16Moment {
  static constexpr bool kIsRounded = true;
  struct Unit {
    uint16_t* values;
    HWY_INLINE Floats Load(int half) const { return LoadBf16s(values + half * kLanes); }
    HWY_INLINE void Store(int half, const Floats& moment, const UnitNoise& unit_noise) {
      const Words noise = unit_noise.Half(half);
      Words kept;
      ForVecs([&](int64_t k)
                  HWY_ATTR { kept.v[k] = hn::ShiftRight<16>(hn::Add(hn::BitCast(DU(), moment.v[k]), noise.v[k])); });
      StoreLowHalves(kept, values + half * kLanes);
    }
    HWY_INLINE void Close(const UnitNoise& /*noise*/) const {}
  };
  uint16_t* values;
  explicit Bf16Moment(void* values) : values(static_cast<uint16_t*>(values)) {}
  HWY_INLINE Unit Open(int64_t i) const { return {values + i}; }
  HWY_INLINE void Prefetch(int64_t i) const { hwy::Prefetch(values + i); }
};

// common/numeric/fp8_block.h. A unit is a block: it is written when its largest value is known.
template <Fp8Kind kKind>
struct Fp8Moment {
  static constexpr bool kIsRounded = true;
  static_assert(kFp8BlockElems == kUnitElems);
  struct Unit {
    uint8_t* block;
    VU exponent;       // the shared one, where fp32 has its own
    Floats stored[2];  // what the block will be

    HWY_INLINE Floats Load(int half) const {
      const Words codes = LoadBytes(block + half * kLanes);
      Floats moment;
      ForVecs([&](int64_t k) HWY_ATTR { moment.v[k] = hn::BitCast(DF(), Decoded(codes.v[k])); });
      return moment;
    }
    HWY_INLINE void Store(int half, const Floats& moment, const UnitNoise& /*noise*/) { stored[half] = moment; }
    HWY_INLINE void Close(const UnitNoise& noise) const {
      const VU shared = SharedExponent(), smallest = hn::ShiftLeft<23>(shared);
      Words codes[2];
      for (const int half : {0, 1}) {
        const Words of_half = noise.Half(half);
        ForVecs([&](int64_t k) HWY_ATTR {
          const VU added = hn::Sub(hn::ShiftLeft<kFp8DroppedBits - 16>(of_half.v[k]), smallest);
          codes[half].v[k] = Encoded(hn::BitCast(DU(), stored[half].v[k]), added);
        });
      }
      StoreBytes(codes[0], codes[1], block);
      block[kFp8BlockElems] = static_cast<uint8_t>(hn::GetLane(shared));
    }

   private:
    HWY_INLINE VU Decoded(VU code) const {
      if constexpr (kKind == Fp8Kind::kPositive) return hn::Add(hn::ShiftLeft<kFp8DroppedBits>(code), exponent);
      const VU magnitude = hn::And(code, hn::Set(DU(), 0x7Fu));
      const VU value = hn::Add(hn::ShiftLeft<kFp8DroppedBits>(magnitude), exponent);
      const VU sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
      return hn::Or(sign, hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(DU())), value));
    }
    // added: the noise, less the smallest code's bits
    HWY_INLINE static VU Encoded(VU bits, VU added) {
      const VI above = hn::BitCast(DI(), hn::Add(WithoutSign(bits), added));
      const VU code = hn::ShiftRight<kFp8DroppedBits>(hn::BitCast(DU(), hn::Max(above, hn::Zero(DI()))));
      if constexpr (kKind == Fp8Kind::kPositive) return code;
      return hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(DU(), 0x80u)));
    }
    HWY_INLINE static VU WithoutSign(VU bits) { return hn::And(bits, hn::Set(DU(), 0x7FFFFFFFu)); }
    // In every lane.
    HWY_INLINE VU SharedExponent() const {
      VU largest = hn::Zero(DU());
      for (const Floats& half : stored) {
        ForVecs([&](int64_t k) HWY_ATTR { largest = hn::Max(largest, WithoutSign(hn::BitCast(DU(), half.v[k]))); });
      }
      largest = hn::MaxOfLanes(DU(), largest);
      const VU above = hn::ShiftRight<23>(hn::Add(largest, hn::Set(DU(), (1u << kFp8DroppedBits) - 1)));
      return hn::Sub(above, hn::Min(above, hn::Set(DU(), Fp8ExponentSpan(kKind))));
    }
  };
  uint8_t* blocks;
  explicit Fp8Moment(void* values) : blocks(static_cast<uint8_t*>(values)) {}
  HWY_INLINE Unit Open(int64_t i) const {
    uint8_t* const block = blocks + i / kFp8BlockElems * kFp8BlockBytes;
    return {block, hn::Set(DU(), uint32_t{block[kFp8BlockElems]} << 23), {}};
  }
  HWY_INLINE void Prefetch(int64_t i) const { hwy::Prefetch(blocks + i / kFp8BlockElems * kFp8BlockBytes); }
};

// The first and the second moment of each format.
struct Fp32Moments {
  using First = Fp32Moment;
  using Second = Fp32Moment;
};
struct Bf16Moments {
  using First = Bf16Moment;
  using Second = Bf16Moment;
};
struct Fp8Moments {
  using First = Fp8Moment<Fp8Kind::kSigned>;
  using Second = Fp8Moment<Fp8Kind::kPositive>;
};

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_MOMENTS_INL_H_
