// Masters as the store keeps them (common/numeric/bf16.h, Split); included once per target.

#if defined(EPS_SERVER_OPTIMIZER_MASTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_SERVER_OPTIMIZER_MASTERS_INL_H_
#undef EPS_SERVER_OPTIMIZER_MASTERS_INL_H_
#else
#define EPS_SERVER_OPTIMIZER_MASTERS_INL_H_
#endif

#include <cstdint>

#include "eps_server/optimizer/lanes-inl.h"
#include "eps_server/store/store.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

struct Fp32Master {
  const float* in;
  float* out;
  explicit Fp32Master(const ChunkState& chunk)
      : in(static_cast<const float*>(chunk.wire_in)), out(static_cast<float*>(chunk.wire_out)) {}
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(in + i); }
  HWY_INLINE void Store(const Floats& p, int64_t i) const { StoreFloats(p, out + i); }
  HWY_INLINE void PrefetchIn(int64_t i) const {
    hwy::Prefetch(in + i);
    hwy::Prefetch(in + i + kLanes);
  }
  HWY_INLINE void PrefetchOut(int64_t i) const {
    hwy::Prefetch(out + i);
    hwy::Prefetch(out + i + kLanes);
  }
};

// common/numeric/bf16.h: Split and Join.
struct SplitMaster {
  const uint16_t* in;
  uint16_t* out;
  uint16_t* rest;
  explicit SplitMaster(const ChunkState& chunk)
      : in(static_cast<const uint16_t*>(chunk.wire_in)),
        out(static_cast<uint16_t*>(chunk.wire_out)),
        rest(chunk.rest) {}
  HWY_INLINE Floats Load(int64_t i) const {
    const Words rounded = Joined(LoadShorts(in + i), LoadShorts(rest + i));
    Floats p;
    ForVecs([&](int64_t k) HWY_ATTR { p.v[k] = hn::BitCast(DF(), hn::Sub(rounded.v[k], hn::Set(DU(), 0x8000u))); });
    return p;
  }
  HWY_INLINE void Store(const Floats& p, int64_t i) const {
    Words high, low;
    ForVecs([&](int64_t k) HWY_ATTR {
      const VU rounded = hn::Add(hn::BitCast(DU(), p.v[k]), hn::Set(DU(), 0x8000u));
      high.v[k] = hn::ShiftRight<16>(rounded);
      low.v[k] = hn::And(rounded, hn::Set(DU(), 0xFFFFu));
    });
    StoreShorts(LowHalves(high), out + i);
    StoreShorts(LowHalves(low), rest + i);
  }
  HWY_INLINE void PrefetchIn(int64_t i) const {
    hwy::Prefetch(in + i);
    hwy::Prefetch(rest + i);
  }
  HWY_INLINE void PrefetchOut(int64_t i) const { hwy::Prefetch(out + i); }
};

// The master beside its wire form, which is made anew and not read.
struct Fp16Master {
  float* master;
  uint16_t* out;
  explicit Fp16Master(const ChunkState& chunk) : master(chunk.master), out(static_cast<uint16_t*>(chunk.wire_out)) {}
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(master + i); }
  HWY_INLINE void Store(const Floats& p, int64_t i) const {
    const Floats in_order = Reordered(p);
    ForVecs([&](int64_t k) HWY_ATTR {
      hn::StoreU(in_order.v[k], DF(), master + i + k * kVec);
      StoreFp16(in_order.v[k], out + i + k * kVec);
    });
  }
  HWY_INLINE void PrefetchIn(int64_t i) const {
    hwy::Prefetch(master + i);
    hwy::Prefetch(master + i + kLanes);
  }
  HWY_INLINE void PrefetchOut(int64_t i) const { hwy::Prefetch(out + i); }
};

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_MASTERS_INL_H_
