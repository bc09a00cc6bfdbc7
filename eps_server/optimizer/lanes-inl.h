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
using VI = hn::Vec<DI>;
using D8 = hn::Rebind<uint8_t, DF>;
using D16 = hn::Rebind<uint16_t, DF>;
using DPairs = hn::Repartition<uint16_t, DF>;  // as many bytes as DF
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
// where not: there lanes 0 to 3 and 8 to 11 are the first vector, 4 to 7 and 12 to 15 the second. Elsewhere they are in order.
constexpr bool kIsByHalves = HWY_TARGET == HWY_AVX2;
static_assert(!kIsByHalves || kVecs == 2);

struct Floats {
  VF v[kVecs];
};
struct Words {
  VU v[kVecs];
};

// fn(k) of each of the vectors.
template <typename Fn>
HWY_INLINE void ForVecs(const Fn& fn) {
  for (int64_t k = 0; k < kVecs; ++k) fn(k);
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

// `high` in the upper 16 bits of each word, `low` in the lower ones.
HWY_INLINE Words LoadHalves(const uint16_t* high, const uint16_t* low) {
  Words words;
#if HWY_TARGET == HWY_AVX2
  const auto h = hn::LoadU(DPairs(), high), l = hn::LoadU(DPairs(), low);
  words.v[0] = hn::BitCast(DU(), hn::InterleaveLower(DPairs(), l, h));
  words.v[1] = hn::BitCast(DU(), hn::InterleaveUpper(DPairs(), l, h));
#else
  ForVecs([&](int64_t k) HWY_ATTR {
    const VU h = hn::PromoteTo(DU(), hn::LoadU(D16(), high + k * kVec));
    words.v[k] = hn::Or(hn::ShiftLeft<16>(h), hn::PromoteTo(DU(), hn::LoadU(D16(), low + k * kVec)));
  });
#endif
  return words;
}
HWY_INLINE Floats LoadBf16s(const uint16_t* from) {
  Floats x;
#if HWY_TARGET == HWY_AVX2
  const auto high = hn::LoadU(DPairs(), from), low = hn::Zero(DPairs());
  x.v[0] = hn::BitCast(DF(), hn::InterleaveLower(DPairs(), low, high));
  x.v[1] = hn::BitCast(DF(), hn::InterleaveUpper(DPairs(), low, high));
#else
  ForVecs([&](int64_t k) HWY_ATTR { x.v[k] = LoadBf16(from + k * kVec); });
#endif
  return x;
}
// Words of at most 0xFFFF: the saturating conversions change nothing.
HWY_INLINE void StoreLowHalves(const Words& words, uint16_t* to) {
#if HWY_TARGET == HWY_AVX2
  const __m256i packed = _mm256_packus_epi32(words.v[0].raw, words.v[1].raw);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
#elif HWY_TARGET <= HWY_AVX3
  // One instruction, where Highway's own takes three.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words.v[0].raw));
#else
  ForVecs([&](int64_t k)
              HWY_ATTR { hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(DI(), words.v[k])), D16(), to + k * kVec); });
#endif
}

// 16 bytes, each as a word.
HWY_INLINE Words LoadBytes(const uint8_t* from) {
  Words words;
#if HWY_TARGET == HWY_AVX2
  const __m128i quarters = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), 0xD8);
  words.v[0] = VU{_mm256_cvtepu8_epi32(quarters)};
  words.v[1] = VU{_mm256_cvtepu8_epi32(_mm_srli_si128(quarters, 8))};
#else
  ForVecs([&](int64_t k) HWY_ATTR { words.v[k] = hn::PromoteTo(DU(), hn::LoadU(D8(), from + k * kVec)); });
#endif
  return words;
}
// Words of at most 0xFF, of kUnitElems elements.
HWY_INLINE void StoreBytes(const Words& first, const Words& second, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  const __m256i first_16 = _mm256_packus_epi32(first.v[0].raw, first.v[1].raw);
  const __m256i second_16 = _mm256_packus_epi32(second.v[0].raw, second.v[1].raw);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(first_16, second_16), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
#else
  ForVecs([&](int64_t k) HWY_ATTR {
    hn::StoreU(hn::DemoteTo(D8(), hn::BitCast(DI(), first.v[k])), D8(), to + k * kVec);
    hn::StoreU(hn::DemoteTo(D8(), hn::BitCast(DI(), second.v[k])), D8(), to + kLanes + k * kVec);
  });
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_LANES_INL_H_
