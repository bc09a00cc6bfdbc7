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

static_assert(kUnitElems == kMomentNoiseUnit);
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
    HWY_INLINE Floats Load(int half) const { return FromBf16(LoadShorts(values + half * kLanes)); }
    HWY_INLINE void Store(int half, const Floats& moment, const UnitNoise& unit_noise) {
      const Words noise = unit_noise.Half(half);
      Words kept;
      ForVecs([&](int64_t k)
                  HWY_ATTR { kept.v[k] = hn::ShiftRight<16>(hn::Add(hn::BitCast(DU(), moment.v[k]), noise.v[k])); });
      StoreShorts(LowHalves(kept), values + half * kLanes);
    }
    HWY_INLINE void Close(const UnitNoise& /*noise*/) const {}
  };
  uint16_t* values;
  explicit Bf16Moment(void* values) : values(static_cast<uint16_t*>(values)) {}
  HWY_INLINE Unit Open(int64_t i) const { return {values + i}; }
  HWY_INLINE void Prefetch(int64_t i) const { hwy::Prefetch(values + i); }
};

// common/numeric/fp8_block.h, by other ways to the same bits: codes are made into bf16 and back in 16 bits, of which a
// vector holds twice as many. A unit is a block: it is written when its largest value is known.
template <Fp8Kind kKind>
struct Fp8Moment {
  static constexpr bool kIsRounded = true;
  static_assert(kFp8BlockElems == kUnitElems);
  struct Unit {
    uint8_t* block;
    ByteUnit codes;
    VS smallest;       // bf16's exponent that is shared
    Floats stored[2];  // what the block will be

    HWY_INLINE Floats Load(int half) const {
      Shorts bits;
      ForShortVecs([&](int64_t k) HWY_ATTR { bits.v[k] = Decoded(codes.half[half].v[k]); });
      return FromBf16(bits);
    }
    HWY_INLINE void Store(int half, const Floats& moment, const UnitNoise& /*noise*/) { stored[half] = moment; }
    HWY_INLINE void Close(const UnitNoise& noise) const {
      Words magnitudes[2];
      for (const int half : {0, 1}) {
        ForVecs([&](int64_t k) HWY_ATTR { magnitudes[half].v[k] = Magnitude(stored[half].v[k]); });
      }
      const uint32_t exponent = SharedExponent(magnitudes);
      const VS lowest = hn::Set(DS(), static_cast<uint16_t>(exponent << (23 - kFp8DroppedBits)));
      ByteUnit made;
      for (const int half : {0, 1}) {
        const Words added = noise.Half(half);
        ForVecs([&](int64_t k) HWY_ATTR {
          const VU with_noise = hn::Add(magnitudes[half].v[k], hn::ShiftLeft<kFp8DroppedBits - 16>(added.v[k]));
          magnitudes[half].v[k] = hn::ShiftRight<kFp8DroppedBits>(with_noise);
        });
        const Shorts kept = LowHalves(magnitudes[half]);
        ForShortVecs([&](int64_t k) HWY_ATTR { made.half[half].v[k] = hn::Sub(kept.v[k], lowest); });
        if constexpr (kKind == Fp8Kind::kSigned) AddSigns(Signs(stored[half]), made.half[half]);
      }
      StoreBytes(made, block);
      block[kFp8BlockElems] = static_cast<uint8_t>(exponent);
    }

   private:
    HWY_INLINE VS Decoded(VS code) const {  // in the upper 8 bits
      if constexpr (kKind == Fp8Kind::kPositive)
        return hn::Add(hn::ShiftRight<8 - (kFp8DroppedBits - 16)>(code), smallest);
      // The sign and 7 bits, where bf16 has them.
      const VS spread = hn::BitCast(DS(), hn::ShiftRight<8 - (kFp8DroppedBits - 16)>(hn::BitCast(DSI(), code)));
      const VS bits = hn::And(spread, hn::Set(DS(), 0x87F0));
      const auto is_zero = hn::Eq(hn::And(code, hn::Set(DS(), 0x7F00)), hn::Zero(DS()));
      return hn::Add(bits, hn::IfThenZeroElse(is_zero, smallest));
    }
    HWY_INLINE static void AddSigns(const Shorts& signs, Shorts& codes) {
      ForShortVecs([&](int64_t k) HWY_ATTR {
        const VS positive = hn::BitCast(DS(), hn::Max(hn::BitCast(DSI(), codes.v[k]), hn::Zero(DSI())));
        codes.v[k] = hn::Or(positive, hn::And(hn::ShiftRight<8>(signs.v[k]), hn::Set(DS(), 0x80)));
      });
    }
    // Second moments have no sign.
    HWY_INLINE static VU Magnitude(VF value) {
      const VU bits = hn::BitCast(DU(), value);
      return kKind == Fp8Kind::kPositive ? bits : hn::And(bits, hn::Set(DU(), 0x7FFFFFFFu));
    }
    HWY_INLINE static uint32_t SharedExponent(const Words (&magnitudes)[2]) {
      VU largest = hn::Max(magnitudes[0].v[0], magnitudes[1].v[0]);
      for (int64_t k = 1; k < kVecs; ++k) {
        largest = hn::Max(largest, hn::Max(magnitudes[0].v[k], magnitudes[1].v[k]));
      }
      return Fp8SharedExponent(kKind, hn::GetLane(hn::MaxOfLanes(DU(), largest)));
    }
  };
  uint8_t* blocks;
  explicit Fp8Moment(void* values) : blocks(static_cast<uint8_t*>(values)) {}
  HWY_INLINE Unit Open(int64_t i) const {
    uint8_t* const block = blocks + i / kFp8BlockElems * kFp8BlockBytes;
    return {block, LoadBytes(block), hn::Set(DS(), static_cast<uint16_t>(block[kFp8BlockElems] << 7)), {}};
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
