#include "gpu_worker/device/cpu/swiglu.h"

#include <algorithm>
#include <cstdint>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/swiglu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: this is per target.
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

// fn(row, first, count) for each row's part of elements [begin, end) of (M, F).
template <typename Fn>
HWY_INLINE void ForRowParts(int64_t F, int64_t begin, int64_t end, const Fn& fn) {
  while (begin < end) {
    const int64_t row = begin / F, first = begin % F, count = std::min(F - first, end - begin);
    fn(row, first, count);
    begin += count;
  }
}

// silu(x) = x * gate. Forward and backward call this one function: the same bits.
struct SiluParts {
  VF gate;  // 1 / (1 + e^-x)
  VF rest;  // 1 - gate, which does not cancel for large x
};
HWY_INLINE SiluParts Silu(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  const VF e = Exp(d, hn::Neg(x));
  const VF gate = hn::Div(one, hn::Add(one, e));
  return {gate, hn::Mul(e, gate)};
}

HWY_INLINE VF RowWeight(DF d, const float* weight, int64_t row) {
  return hn::Set(d, weight == nullptr ? 1.0f : weight[row]);
}

void SwigluImpl(const SwigluArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const int64_t F = args.F;
  ForRowParts(F, begin, end, [&](int64_t row, int64_t first, int64_t count) {
    const float* gate = static_cast<const float*>(args.gate_up) + row * 2 * F + first;
    const float* up = gate + F;
    float* y = static_cast<float*>(args.y) + row * F + first;
    const VF weight = RowWeight(d, args.weight, row);
    for (int64_t i = 0; i < count; i += kVecLanes) {
      const int64_t left = count - i;
      const VF x = LoadTail(d, gate + i, left);
      const VF product = hn::Mul(hn::Mul(x, Silu(d, x).gate), LoadTail(d, up + i, left));
      StoreTail(hn::Mul(product, weight), d, y + i, left);
    }
  });
}

void SwigluBackwardImpl(const SwigluBackwardArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const int64_t F = args.F;
  ForRowParts(F, begin, end, [&](int64_t row, int64_t first, int64_t count) {
    const float* gate = static_cast<const float*>(args.gate_up) + row * 2 * F + first;
    const float* dy = static_cast<const float*>(args.dy) + row * F + first;
    float* dgate = static_cast<float*>(args.dgate_up) + row * 2 * F + first;
    float* y = args.y == nullptr ? nullptr : static_cast<float*>(args.y) + row * F + first;
    const VF weight = RowWeight(d, args.weight, row);
    RowSum dweight;
    for (int64_t i = 0; i < count; i += kLogicalLanes) {
      for (int64_t k = 0; k < kAccs; ++k) {
        const int64_t at = i + k * kVecLanes, left = count - at;
        const VF x = LoadTail(d, gate + at, left), up = LoadTail(d, gate + F + at, left);
        const VF dyv = LoadTail(d, dy + at, left);
        const SiluParts s = Silu(d, x);
        const VF silu = hn::Mul(x, s.gate), product = hn::Mul(silu, up);
        dweight.acc[k] = hn::MulAdd(dyv, product, dweight.acc[k]);  // 0 behind the row's end
        if (y != nullptr) StoreTail(hn::Mul(product, weight), d, y + at, left);
        // silu' = gate + x gate (1 - gate)
        const VF derivative = hn::MulAdd(silu, s.rest, s.gate);
        const VF dproduct = hn::Mul(dyv, weight);
        StoreTail(hn::Mul(hn::Mul(dproduct, up), derivative), d, dgate + at, left);
        StoreTail(hn::Mul(dproduct, silu), d, dgate + F + at, left);
      }
    }
    if (args.dweight != nullptr) args.dweight[row] = dweight.Total();
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(SwigluImpl);
HWY_EXPORT(SwigluBackwardImpl);

void SwigluElems(const SwigluArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(SwigluImpl)(args, begin, end);
}
void SwigluBackwardElems(const SwigluBackwardArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(SwigluBackwardImpl)(args, begin, end);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
