// Where an update reads the summed gradient; included once per target.

#if defined(EPS_SERVER_OPTIMIZER_GRADIENT_SOURCES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_SERVER_OPTIMIZER_GRADIENT_SOURCES_INL_H_
#undef EPS_SERVER_OPTIMIZER_GRADIENT_SOURCES_INL_H_
#else
#define EPS_SERVER_OPTIMIZER_GRADIENT_SOURCES_INL_H_
#endif

#include <cstdint>

#include "eps_server/optimizer/lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::server {
namespace HWY_NAMESPACE {

// Where the summed gradient comes from. The usual cases, at most two contributions, are read as the
// update goes; sums of more go through a block in L1.
struct Fp32Source {
  const float* values;
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(values + i); }
  HWY_INLINE void Prefetch(int64_t i) const {
    hwy::Prefetch(values + i);
    hwy::Prefetch(values + i + kLanes);
  }
};
struct Bf16Source {
  const uint16_t* values;
  HWY_INLINE Floats Load(int64_t i) const { return FromBf16(LoadShorts(values + i)); }
  HWY_INLINE void Prefetch(int64_t i) const { hwy::Prefetch(values + i); }
};
template <typename Left, typename Right>
struct SumSource {
  Left left;
  Right right;
  HWY_INLINE Floats Load(int64_t i) const {
    Floats sum = left.Load(i);
    const Floats added = right.Load(i);
    ForVecs([&](int64_t k) HWY_ATTR { sum.v[k] = hn::Add(sum.v[k], added.v[k]); });
    return sum;
  }
  HWY_INLINE void Prefetch(int64_t i) const {
    left.Prefetch(i);
    right.Prefetch(i);
  }
};
struct BlockSource {
  const float* block;  // of element `first`
  int64_t first;
  HWY_INLINE Floats Load(int64_t i) const { return LoadFloats(block + (i - first)); }
  HWY_INLINE void Prefetch(int64_t) const {}
};

}  // namespace HWY_NAMESPACE
}  // namespace eps::server
HWY_AFTER_NAMESPACE();

#endif  // EPS_SERVER_OPTIMIZER_GRADIENT_SOURCES_INL_H_
