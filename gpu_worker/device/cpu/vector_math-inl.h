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

#include "gpu_worker/device/kernels.h"
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

// An activation and its derivative. Forward and backward call the same function: the same bits.
struct Activated {
  VF y;
  VF slope;  // dy / dx
};

// By the identity 0.5 (1 + tanh u) = 1 / (1 + e^-2u), which does not cancel for negative u.
HWY_INLINE Activated GeluTanh(DF d, VF x) {
  constexpr float kTwoRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  const VF square = hn::Mul(x, x);
  const VF inner = hn::MulAdd(square, hn::Set(d, kTwoRoot * kCubic), hn::Set(d, kTwoRoot));  // 2 u / x
  const VF one = hn::Set(d, 1.0f);
  const VF e = Exp(d, hn::Neg(hn::Mul(x, inner)));
  const VF gate = hn::Div(one, hn::Add(one, e));
  // gate' = gate (1 - gate) d(2 u) / dx
  const VF steep = hn::MulAdd(square, hn::Set(d, 3 * kTwoRoot * kCubic), hn::Set(d, kTwoRoot));
  const VF bend = hn::Mul(hn::Mul(gate, hn::Sub(one, gate)), steep);
  return {hn::Mul(x, gate), hn::MulAdd(x, bend, gate)};
}

// Phi(-t) = e^(-t^2 / 2) w P(w) for t >= 0, w = 1 / (1 + 0.35 t); P, of degree 8, is fitted to it for t up to 13.5, where
// the exponential has become 0: relative error 3.2e-8 without rounding. Nothing cancels for negative x.
HWY_INLINE Activated Gelu(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  const VF e = Exp(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f)));
  const VF w = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.35f), one));
  VF p = hn::Set(d, -2.912596427e-02f);
  p = hn::MulAdd(p, w, hn::Set(d, 1.438726932e-01f));
  p = hn::MulAdd(p, w, hn::Set(d, -2.555054724e-01f));
  p = hn::MulAdd(p, w, hn::Set(d, 1.589302868e-01f));
  p = hn::MulAdd(p, w, hn::Set(d, -2.293777838e-02f));
  p = hn::MulAdd(p, w, hn::Set(d, 1.054331884e-01f));
  p = hn::MulAdd(p, w, hn::Set(d, 1.198523790e-01f));
  p = hn::MulAdd(p, w, hn::Set(d, 1.398590952e-01f));
  p = hn::MulAdd(p, w, hn::Set(d, 1.396215707e-01f));
  const VF tail = hn::Mul(hn::Mul(p, w), e);
  const VF phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  const VF density = hn::Mul(e, hn::Set(d, 0.3989422804014327f));  // 1 / sqrt(2 pi)
  return {hn::Mul(x, phi), hn::MulAdd(x, density, phi)};
}

// From e^-2|x|, which cannot overflow.
HWY_INLINE Activated Tanh(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  const VF e = Exp(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f)));
  const VF r = hn::Div(one, hn::Add(one, e));
  return {hn::CopySign(hn::Mul(hn::Sub(one, e), r), x), hn::Mul(hn::Mul(hn::Set(d, 4.0f), e), hn::Mul(r, r))};
}

// fn(f), f being one of the above.
template <typename Fn>
HWY_INLINE void ForActivation(Activation activation, const Fn& fn) {
  switch (activation) {
    case Activation::kGeluTanh:
      return fn([](DF d, VF x) HWY_ATTR { return GeluTanh(d, x); });
    case Activation::kGelu:
      return fn([](DF d, VF x) HWY_ATTR { return Gelu(d, x); });
    case Activation::kTanh:
      return fn([](DF d, VF x) HWY_ATTR { return Tanh(d, x); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#endif  // EPS_GPU_WORKER_DEVICE_CPU_VECTOR_MATH_INL_H_
