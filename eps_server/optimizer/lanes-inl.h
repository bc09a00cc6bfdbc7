// The 16 logical lanes in which chunks are summed and updated: loads, stores and their order; included once per target.

#if defined(EPS_SERVER_OPTIMIZER_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_SERVER_OPTIMIZER_LANES_INL_H_
#undef EPS_SERVER_OPTIMIZER_LANES_INL_H_
#else
#define EPS_SERVER_OPTIMIZER_LANES_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kLanes = 16;              // at any vector width
inline constexpr int64_t kUnitElems = 2 * kLanes;  // what an update does at once
using DF = hn::CappedTag<float, kLanes>;
using VF = hn::Vec<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;
using DI = hn::RebindToSigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;
using DH = hn::Rebind<hwy::float16_t, DF>;
using DHalf = hn::Half<DF>;
using DD = hn::Rebind<double, DHalf>;
using VD = hn::Vec<DD>;
constexpr int64_t kVec = static_cast<int64_t>(hn::MaxLanes(DF()));
constexpr int64_t kVecs = kLanes / kVec;  // vectors per 16 logical lanes

HWY_INLINE VF LoadBf16(const uint16_t* from) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(D16(), from))));
}
// As common/numeric/fp16.h: to nearest, ties to even, on every processor.
HWY_INLINE VF LoadFp16(const uint16_t* from) { return hn::PromoteTo(DF(), hn::BitCast(DH(), hn::LoadU(D16(), from))); }
HWY_INLINE void StoreFp16(VF value, uint16_t* to) {
  hn::StoreU(hn::BitCast(D16(), hn::DemoteTo(DH(), value)), D16(), to);
}

// AVX2 widens and narrows 16-bit values by one instruction each where it may stay within halves of a vector, and by two
// where not: there lanes 0 to 3 and 8 to 11 are the first vector, 4 to 7 and 12 to 15 the second. Elsewhere they are in
// order.
constexpr bool kIsByHalves = HWY_TARGET == HWY_AVX2;
static_assert(!kIsByHalves || kVecs == 2);

struct Floats {
  VF v[kVecs];
};
struct Words {
  VU v[kVecs];
};

// The same lanes in 16 bits.
#if HWY_TARGET == HWY_AVX2
using DS = hn::Repartition<uint16_t, DF>;
#else
using DS = D16;
#endif
using VS = hn::Vec<DS>;
using DSI = hn::RebindToSigned<DS>;
constexpr int64_t kShortVec = static_cast<int64_t>(hn::MaxLanes(DS()));
constexpr int64_t kShortVecs = kLanes / kShortVec;
struct Shorts {
  VS v[kShortVecs];
};

// fn(k) of each of the vectors.
template <typename Fn>
HWY_INLINE void ForVecs(const Fn& fn) {
  for (int64_t k = 0; k < kVecs; ++k) fn(k);
}

template <typename Fn>
HWY_INLINE void ForShortVecs(const Fn& fn) {
  for (int64_t k = 0; k < kShortVecs; ++k) fn(k);
}

// From lanes in order to those of Floats, and back.
HWY_INLINE Floats Reordered(const Floats& x) {
#if HWY_TARGET == HWY_AVX2
  return {hn::ConcatLowerLower(DF(), x.v[1], x.v[0]), hn::ConcatUpperUpper(DF(), x.v[1], x.v[0])};
#else
  return x;
#endif
}

HWY_INLINE Floats LoadFloats(const float* from) {
  Floats in_order;
  ForVecs([&](int64_t k) HWY_ATTR { in_order.v[k] = hn::LoadU(DF(), from + k * kVec); });
  return Reordered(in_order);
}
HWY_INLINE void StoreFloats(const Floats& x, float* to) {
  const Floats in_order = Reordered(x);
  ForVecs([&](int64_t k) HWY_ATTR { hn::StoreU(in_order.v[k], DF(), to + k * kVec); });
}

HWY_INLINE Shorts LoadShorts(const uint16_t* from) {
  Shorts x;
  ForShortVecs([&](int64_t k) HWY_ATTR { x.v[k] = hn::LoadU(DS(), from + k * kShortVec); });
  return x;
}
HWY_INLINE void StoreShorts(const Shorts& x, uint16_t* to) {
  ForShortVecs([&](int64_t k) HWY_ATTR { hn::StoreU(x.v[k], DS(), to + k * kShortVec); });
}

// `high` in the upper 16 bits of each word, `low` in the lower ones.
HWY_INLINE Words Joined(const Shorts& high, const Shorts& low) {
#if HWY_TARGET == HWY_AVX2
  return {hn::BitCast(DU(), hn::InterleaveLower(DS(), low.v[0], high.v[0])),
          hn::BitCast(DU(), hn::InterleaveUpper(DS(), low.v[0], high.v[0]))};
#else
  Words words;
  ForVecs([&](int64_t k) HWY_ATTR {
    words.v[k] = hn::Or(hn::ShiftLeft<16>(hn::PromoteTo(DU(), high.v[k])), hn::PromoteTo(DU(), low.v[k]));
  });
  return words;
#endif
}
HWY_INLINE Floats FromBf16(const Shorts& bits) {
#if HWY_TARGET == HWY_AVX2
  const Words words = Joined(bits, {hn::Zero(DS())});
  return {hn::BitCast(DF(), words.v[0]), hn::BitCast(DF(), words.v[1])};
#else
  Floats x;
  ForVecs([&](int64_t k) HWY_ATTR { x.v[k] = hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits.v[k]))); });
  return x;
#endif
}
// The low halves of words of at most 0xFFFF: the saturating conversions change nothing.
HWY_INLINE Shorts LowHalves(const Words& words) {
#if HWY_TARGET == HWY_AVX2
  return {VS{_mm256_packus_epi32(words.v[0].raw, words.v[1].raw)}};
#elif HWY_TARGET <= HWY_AVX3
  return {VS{_mm512_cvtepi32_epi16(words.v[0].raw)}};  // one instruction, where Highway's own takes three
#else
  Shorts x;
  ForVecs([&](int64_t k) HWY_ATTR { x.v[k] = hn::DemoteTo(DS(), hn::BitCast(DI(), words.v[k])); });
  return x;
#endif
}
// The sign of each, in the uppermost bit; what the others are does not matter.
HWY_INLINE Shorts Signs(const Floats& x) {
#if HWY_TARGET == HWY_AVX2
  const auto saturated = hn::ReorderDemote2To(DSI(), hn::BitCast(DI(), x.v[0]), hn::BitCast(DI(), x.v[1]));
  return {hn::BitCast(DS(), saturated)};
#else
  Shorts signs;
  ForVecs([&](int64_t k) HWY_ATTR { signs.v[k] = hn::BitCast(DS(), hn::DemoteTo(DSI(), hn::BitCast(DI(), x.v[k]))); });
  return signs;
#endif
}

// The 16 lanes of each half of kUnitElems bytes.
struct ByteUnit {
  Shorts half[2];
};
// Each byte in the upper 8 of its 16 bits.
HWY_INLINE ByteUnit LoadBytes(const uint8_t* from) {
  ByteUnit bytes;
#if HWY_TARGET == HWY_AVX2
  const hn::Repartition<uint8_t, DF> d8;
  const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const hn::Vec<decltype(d8)> quarters{_mm256_permute4x64_epi64(loaded, 0xD8)};
  bytes.half[0].v[0] = hn::BitCast(DS(), hn::InterleaveLower(d8, hn::Zero(d8), quarters));
  bytes.half[1].v[0] = hn::BitCast(DS(), hn::InterleaveUpper(d8, hn::Zero(d8), quarters));
#else
  const hn::Rebind<uint8_t, DS> d8;
  for (const int half : {0, 1}) {
    ForShortVecs([&](int64_t k) HWY_ATTR {
      const uint8_t* const at = from + half * kLanes + k * kShortVec;
      bytes.half[half].v[k] = hn::ShiftLeft<8>(hn::PromoteTo(DS(), hn::LoadU(d8, at)));
    });
  }
#endif
  return bytes;
}
// What is at most 0xFF as signed 16 bits; negative ones are 0.
HWY_INLINE void StoreBytes(const ByteUnit& bytes, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  const __m256i quarters = _mm256_packus_epi16(bytes.half[0].v[0].raw, bytes.half[1].v[0].raw);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(quarters, 0xD8));
#else
  const hn::Rebind<uint8_t, DS> d8;
  for (const int half : {0, 1}) {
    ForShortVecs([&](int64_t k) HWY_ATTR {
      hn::StoreU(hn::DemoteTo(d8, hn::BitCast(DSI(), bytes.half[half].v[k])), d8, to + half * kLanes + k * kShortVec);
    });
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_LANES_INL_H_
