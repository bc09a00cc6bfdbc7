// Vector helpers of the kernels; included once per target, between HWY_BEFORE_NAMESPACE and
// HWY_AFTER_NAMESPACE.

#if defined(EPS_GPU_WORKER_DEVICE_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_GPU_WORKER_DEVICE_CPU_VECTOR_MATH_INL_H_
#undef EPS_GPU_WORKER_DEVICE_CPU_VECTOR_MATH_INL_H_
#else
#define EPS_GPU_WORKER_DEVICE_CPU_VECTOR_MATH_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums over a row use 16 logical lanes at any vector width, so that the width does not change the
// sum.
inline constexpr int64_t kLogicalLanes = 16;
using DF = hn::CappedTag<float, kLogicalLanes>;
using VF = hn::Vec<DF>;
inline constexpr int64_t kVecLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
inline constexpr int64_t kAccs = kLogicalLanes / kVecLanes;

// The first min(n, lanes) elements, zero behind them. Nothing behind p[n - 1] is read.
HWY_INLINE VF LoadTail(DF d, const float* p, int64_t n) {
  return n >= kVecLanes ? hn::LoadU(d, p) : hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n > 0 ? n : 0)), d, p);
}
HWY_INLINE void StoreTail(VF v, DF d, float* p, int64_t n) {
  if (n >= kVecLanes) {
    hn::StoreU(v, d, p);
  } else if (n > 0) {
    hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
  }
}

// Adds 16 lanes in one fixed order: halves onto each other.
HWY_INLINE float SumLanes(const float* lanes16) {
  float half[8];
  for (int i = 0; i < 8; ++i) half[i] = lanes16[i] + lanes16[i + 8];
  for (int i = 0; i < 4; ++i) half[i] += half[i + 4];
  return (half[0] + half[2]) + (half[1] + half[3]);
}

// 16 running sums; element c of a row goes to lane c mod 16.
struct RowSum {
  VF acc[kAccs];
  HWY_INLINE RowSum() {
    for (int64_t k = 0; k < kAccs; ++k) acc[k] = hn::Zero(DF());
  }
  HWY_INLINE float Total() const {
    HWY_ALIGN float lanes[kLogicalLanes];
    for (int64_t k = 0; k < kAccs; ++k) hn::Store(acc[k], DF(), lanes + k * kVecLanes);
    return SumLanes(lanes);
  }
};

// e^x within 2 ulp for x in [-87, 88]; 0 below, e^88 above, so that callers never see inf; NaN
// stays NaN, which Highway's own Exp does not promise, and a lost NaN would hide a run that has
// diverged. Source: Cephes expf (Moshier): x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial of degree
// 7 in r, then 2^n by the exponent.
HWY_INLINE VF Exp(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  const VF lo = hn::Set(d, -87.0f), hi = hn::Set(d, 88.0f);
  const auto too_low = hn::Lt(x, lo);
  x = hn::IfThenElse(too_low, lo, x);
  x = hn::IfThenElse(hn::Gt(x, hi), hi, x);
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits, here with the exponent's
  // bias.
  const VF magic = hn::Set(d, 12582912.0f + 127.0f);
  const VF shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const VF n = hn::Sub(shifted, magic);
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  VF p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0f)));
  // A product, not a sum of exponents, so that NaN stays NaN.
  const VF e = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  return hn::IfThenElse(too_low, hn::Zero(d), e);
}

// GELU (tanh form) by the identity 0.5 (1 + tanh u) = 1 / (1 + e^-2u), which does not cancel for
// negative u. Forward and backward call this one function: the same bits.
struct GeluParts {
  VF gate;   // 0.5 (1 + tanh u); gelu(x) = x * gate
  VF slope;  // d(2 u) / dx
};
HWY_INLINE GeluParts Gelu(DF d, VF x) {
  constexpr float kTwoRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  const VF square = hn::Mul(x, x);
  const VF inner = hn::MulAdd(square, hn::Set(d, kTwoRoot * kCubic), hn::Set(d, kTwoRoot));  // 2 u / x
  const VF one = hn::Set(d, 1.0f);
  const VF e = Exp(d, hn::Neg(hn::Mul(x, inner)));
  return {hn::Div(one, hn::Add(one, e)), hn::MulAdd(square, hn::Set(d, 3 * kTwoRoot * kCubic), hn::Set(d, kTwoRoot))};
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#endif  // EPS_GPU_WORKER_DEVICE_CPU_VECTOR_MATH_INL_H_
