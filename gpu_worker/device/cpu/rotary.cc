#include "gpu_worker/device/cpu/rotary.h"

#include <cstdint>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/rotary.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

void RotaryImpl(const RotaryArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const int64_t half = args.D / 2;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t position = row % args.T - (args.documents.first == nullptr ? 0 : args.documents.first[row]);
    const float* cosines = args.table + position * args.D;
    const float* sines = cosines + half;
    for (int64_t head = 0; head < args.heads; ++head) {
      float* first = static_cast<float*>(args.x) + row * args.ld + head * args.D;
      float* second = first + half;
      for (int64_t i = 0; i < half; i += kVecLanes) {
        const int64_t left = half - i;
        const VF a = LoadTail(d, first + i, left), b = LoadTail(d, second + i, left);
        const VF cos = LoadTail(d, cosines + i, left);
        VF sin = LoadTail(d, sines + i, left);
        if (args.inverse) sin = hn::Neg(sin);
        StoreTail(hn::NegMulAdd(b, sin, hn::Mul(a, cos)), d, first + i, left);
        StoreTail(hn::MulAdd(a, sin, hn::Mul(b, cos)), d, second + i, left);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(RotaryImpl);

void RotaryRows(const RotaryArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RotaryImpl)(args, begin, end);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
