// Dropout masks in vectors; included once per target.

#if defined(EPS_GPU_WORKER_DEVICE_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef EPS_GPU_WORKER_DEVICE_CPU_DROPOUT_INL_H_
#undef EPS_GPU_WORKER_DEVICE_CPU_DROPOUT_INL_H_
#else
#define EPS_GPU_WORKER_DEVICE_CPU_DROPOUT_INL_H_
#endif

#include <cstdint>

#include "common/numeric/philox.h"
#include "gpu_worker/device/cpu/vector_math-inl.h"
#include "gpu_worker/device/dropout_plan.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {

using DU64 = hn::Repartition<uint64_t, DF>;
using DU32 = hn::Repartition<uint32_t, DF>;
inline constexpr int64_t kCountersPerStep = kVecLanes / 2;

// Words that KeepBits may write for n elements: a counter more at each end, and a whole step.
constexpr int64_t KeepBitsWords(int64_t n) { return n + 8 + 4 * 8; }

// The random words of counters first ... first + kCountersPerStep - 1, four words each, in order.
//
// Each 64-bit lane holds one counter; a 32-bit word of Philox's state is the lane's low half, and
// what the high half holds is ignored by the multiplication.
HWY_INLINE void PhiloxStep(PhiloxKey key, uint64_t first, uint32_t* out) {
  const DU64 d64;
  const DU32 d32;
  const auto counter = hn::Add(hn::Set(d64, first), hn::Iota(d64, 0));
  auto c0 = counter, c1 = hn::ShiftRight<32>(counter), c2 = hn::Zero(d64), c3 = hn::Zero(d64);
  const auto mul0 = hn::Set(d32, 0xD2511F53u), mul1 = hn::Set(d32, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const auto product0 = hn::MulEven(hn::BitCast(d32, c0), mul0);
    const auto product1 = hn::MulEven(hn::BitCast(d32, c2), mul1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(d64, key.k0));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(d64, key.k1));
    c1 = product1;
    c3 = product0;
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  const auto low = hn::Set(d64, 0xFFFFFFFFu);
  const auto words01 = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
  const auto words23 = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
  hn::StoreInterleaved2(words01, words23, d64, reinterpret_cast<uint64_t*>(out));
}

// The random words of elements [element, element + n) of the array, somewhere in buf
// (KeepBitsWords(n), 8-byte aligned).
HWY_INLINE const uint32_t* KeepBits(const DropoutPlan& plan, int64_t element, int64_t n, uint32_t* buf) {
  const int64_t begin = plan.first_element + element;
  const int64_t end = begin + n;
  const int64_t first_counter = begin / 4;
  uint32_t* out = buf;
  for (int64_t counter = first_counter; counter * 4 < end; counter += kCountersPerStep) {
    PhiloxStep(plan.key, static_cast<uint64_t>(counter), out);
    out += 4 * kCountersPerStep;
  }
  return buf + (begin - first_counter * 4);
}

// v / (1 - rate) where the word says keep, else 0, whatever v is.
HWY_INLINE VF DropV(const DropoutPlan& plan, VF v, hn::Vec<DU32> words) {
  const DF d;
  const auto keep = hn::RebindMask(d, hn::Gt(words, hn::Set(DU32(), plan.drop_up_to)));
  return hn::IfThenElseZero(keep, hn::Mul(v, hn::Set(d, plan.keep_scale)));
}

}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#endif  // EPS_GPU_WORKER_DEVICE_CPU_DROPOUT_INL_H_
