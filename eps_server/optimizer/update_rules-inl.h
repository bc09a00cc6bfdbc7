// What an update does to 16 elements (update_scalars.h has the arithmetic); included once per target.

#if defined(EPS_SERVER_OPTIMIZER_UPDATE_RULES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_SERVER_OPTIMIZER_UPDATE_RULES_INL_H_
#undef EPS_SERVER_OPTIMIZER_UPDATE_RULES_INL_H_
#else
#define EPS_SERVER_OPTIMIZER_UPDATE_RULES_INL_H_
#endif

#include <cstdint>

#include "eps_server/optimizer/lanes-inl.h"
#include "eps_server/optimizer/moments-inl.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

// AdamW, and what LAMB does once it knows its trust ratios.
template <typename Moments>
struct AdamW {
  static constexpr bool kIsRounded = Moments::First::kIsRounded;
  struct Unit {
    typename Moments::First::Unit m;
    typename Moments::Second::Unit v;
    HWY_INLINE void Close(const UnitNoise& noise) const {
      m.Close(noise);
      v.Close(noise);
    }
  };
  typename Moments::First m;
  typename Moments::Second v;
  VF keep, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias2, eps, step_size;
  AdamW(const ChunkState& chunk, const UpdateScalars& s, const GroupScalars& group)
      : m(chunk.moment1),
        v(chunk.moment2),
        keep(hn::Set(DF(), group.keep)),
        beta1(hn::Set(DF(), s.beta1)),
        one_minus_beta1(hn::Set(DF(), s.one_minus_beta1)),
        beta2(hn::Set(DF(), s.beta2)),
        one_minus_beta2(hn::Set(DF(), s.one_minus_beta2)),
        inv_sqrt_bias2(hn::Set(DF(), s.inv_sqrt_bias2)),
        eps(hn::Set(DF(), s.eps)),
        step_size(hn::Set(DF(), group.step_size)) {}
  HWY_INLINE Unit Open(int64_t i) const { return {m.Open(i), v.Open(i)}; }
  // The moments of the next version, and m / (sqrt(v) * inv_sqrt_bias2 + eps) of them.
  HWY_INLINE VF Advance(VF g, VF& mk, VF& vk) const {
    mk = hn::MulAdd(mk, beta1, hn::Mul(g, one_minus_beta1));
    vk = hn::MulAdd(vk, beta2, hn::Mul(hn::Mul(g, g), one_minus_beta2));
    return hn::Div(mk, hn::MulAdd(hn::Sqrt(vk), inv_sqrt_bias2, eps));
  }
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const UnitNoise& noise, Unit& unit, int half) const {
    Floats mi = unit.m.Load(half), vi = unit.v.Load(half), out;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VF direction = Advance(g.v[k], mi.v[k], vi.v[k]);
      out.v[k] = hn::NegMulAdd(step_size, direction, hn::Mul(p.v[k], keep));
    });
    unit.m.Store(half, mi, noise);
    unit.v.Store(half, vi, noise);
    return out;
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    m.Prefetch(i);
    v.Prefetch(i);
  }
};

// With weight decay as a part of the gradient.
template <typename Moments>
struct Adam {
  static constexpr bool kIsRounded = Moments::First::kIsRounded;
  using Unit = typename AdamW<Moments>::Unit;
  AdamW<Moments> adamw;
  VF decay;
  Adam(const ChunkState& chunk, const UpdateScalars& s, const GroupScalars& group)
      : adamw(chunk, s, group), decay(hn::Set(DF(), group.decay)) {}
  HWY_INLINE Unit Open(int64_t i) const { return adamw.Open(i); }
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const UnitNoise& noise, Unit& unit, int half) const {
    Floats decayed;
    ForVecs([&](int64_t k) HWY_ATTR { decayed.v[k] = hn::MulAdd(decay, p.v[k], g.v[k]); });
    return adamw.Update(p, decayed, noise, unit, half);
  }
  HWY_INLINE void Prefetch(int64_t i) const { adamw.Prefetch(i); }
};

// LAMB's u: update_scalars.h.
template <typename Moments>
struct LambStep {
  AdamW<Moments> adam;
  VF inv_bias1, decay;
  LambStep(const ChunkState& chunk, const UpdateScalars& s, const GroupScalars& group)
      : adam(chunk, s, group), inv_bias1(hn::Set(DF(), s.inv_bias1)), decay(hn::Set(DF(), group.decay)) {}
  HWY_INLINE Floats Of(const Floats& p, const Floats& g, const typename AdamW<Moments>::Unit& unit, int half) const {
    Floats mi = unit.m.Load(half), vi = unit.v.Load(half), step;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VF direction = adam.Advance(g.v[k], mi.v[k], vi.v[k]);
      step.v[k] = hn::MulAdd(decay, p.v[k], hn::Mul(inv_bias1, direction));
    });
    return step;
  }
};

template <typename Moments>
struct Momentum {
  using Moment = typename Moments::First;
  using Unit = typename Moment::Unit;
  static constexpr bool kIsRounded = Moment::kIsRounded;
  Moment b;
  VF decay, momentum, step_size;
  Momentum(const ChunkState& chunk, const UpdateScalars& s, const GroupScalars& group)
      : b(chunk.moment1),
        decay(hn::Set(DF(), group.decay)),
        momentum(hn::Set(DF(), s.momentum)),
        step_size(hn::Set(DF(), group.step_size)) {}
  HWY_INLINE Unit Open(int64_t i) const { return b.Open(i); }
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const UnitNoise& noise, Unit& unit, int half) const {
    Floats bi = unit.Load(half), out;
    ForVecs([&](int64_t k) HWY_ATTR {
      bi.v[k] = hn::MulAdd(momentum, bi.v[k], hn::MulAdd(decay, p.v[k], g.v[k]));
      out.v[k] = hn::NegMulAdd(step_size, bi.v[k], p.v[k]);
    });
    unit.Store(half, bi, noise);
    return out;
  }
  HWY_INLINE void Prefetch(int64_t i) const { b.Prefetch(i); }
};

template <typename Moments>
struct Lion {
  using Moment = typename Moments::First;
  using Unit = typename Moment::Unit;
  static constexpr bool kIsRounded = Moment::kIsRounded;
  Moment m;
  VF keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size;
  Lion(const ChunkState& chunk, const UpdateScalars& s, const GroupScalars& group)
      : m(chunk.moment1),
        keep(hn::Set(DF(), group.keep)),
        beta1(hn::Set(DF(), s.beta1)),
        one_minus_beta1(hn::Set(DF(), s.one_minus_beta1)),
        beta2(hn::Set(DF(), s.beta2)),
        one_minus_beta2(hn::Set(DF(), s.one_minus_beta2)),
        step_size(hn::Set(DF(), group.step_size)) {}
  HWY_INLINE Unit Open(int64_t i) const { return m.Open(i); }
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const UnitNoise& noise, Unit& unit, int half) const {
    Floats mi = unit.Load(half), out;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VF direction = hn::MulAdd(mi.v[k], beta1, hn::Mul(g.v[k], one_minus_beta1));
      const VF step = hn::IfThenElseZero(hn::Ne(direction, hn::Zero(DF())), hn::CopySign(step_size, direction));
      out.v[k] = hn::Sub(hn::Mul(p.v[k], keep), step);
      mi.v[k] = hn::MulAdd(mi.v[k], beta2, hn::Mul(g.v[k], one_minus_beta2));
    });
    unit.Store(half, mi, noise);
    return out;
  }
  HWY_INLINE void Prefetch(int64_t i) const { m.Prefetch(i); }
};

// Without momentum.
struct PlainSgd {
  static constexpr bool kIsRounded = false;
  struct Unit {
    HWY_INLINE void Close(const UnitNoise& /*noise*/) const {}
  };
  VF decay, step_size;
  PlainSgd(const ChunkState& /*chunk*/, const UpdateScalars& /*s*/, const GroupScalars& group)
      : decay(hn::Set(DF(), group.decay)), step_size(hn::Set(DF(), group.step_size)) {}
  HWY_INLINE Unit Open(int64_t /*i*/) const { return {}; }
  HWY_INLINE Floats Update(const Floats& p, const Floats& g, const UnitNoise& /*noise*/, Unit& /*unit*/,
                           int /*half*/) const {
    Floats out;
    ForVecs([&](int64_t k)
                HWY_ATTR { out.v[k] = hn::NegMulAdd(step_size, hn::MulAdd(decay, p.v[k], g.v[k]), p.v[k]); });
    return out;
  }
  HWY_INLINE void Prefetch(int64_t /*i*/) const {}
};

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_RULES_INL_H_
