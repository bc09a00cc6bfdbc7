#include "gpu_worker/device/cpu/softmax.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/softmax.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

// The largest of the row that is not NaN (a NaN shows up in the sum), at least `largest`.
HWY_INLINE float RowMax(const float* x, int64_t n, float largest) {
  const DF d;
  VF max = hn::Set(d, largest);
  int64_t c = 0;
  for (; c + kVecLanes <= n; c += kVecLanes) {
    const VF v = hn::LoadU(d, x + c);
    max = hn::IfThenElse(hn::Gt(v, max), v, max);
  }
  HWY_ALIGN float lanes[kLogicalLanes];
  hn::Store(max, d, lanes);
  for (int64_t k = 0; k < kVecLanes; ++k) largest = std::max(largest, lanes[k]);
  for (; c < n; ++c) largest = x[c] > largest ? x[c] : largest;
  return largest;
}

// The sum of e^(x - max).
HWY_INLINE float RowExpSum(const float* x, int64_t n, float max) {
  const DF d;
  const VF m = hn::Set(d, max);
  RowSum sum;
  for (int64_t c = 0; c < n; c += kLogicalLanes) {
    for (int64_t k = 0; k < kAccs; ++k) {
      const int64_t at = c + k * kVecLanes, left = n - at;
      const VF e = Exp(d, hn::Sub(LoadTail(d, x + at, left), m));
      const auto there = hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(left, 0, kVecLanes)));
      sum.acc[k] = hn::Add(sum.acc[k], hn::IfThenElseZero(there, e));
    }
  }
  return sum.Total();
}

HWY_INLINE float ScalarExp(float x) {
  const DF d;
  return hn::GetLane(Exp(d, hn::Set(d, x)));
}

void SoftmaxChunkImpl(const SoftmaxChunkArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = static_cast<const float*>(args.logits) + row * args.ld;
    const bool first = args.first == 0;
    const float old_max = first ? std::numeric_limits<float>::lowest() : args.row_max[row];
    const float max = RowMax(x, args.chunk, old_max);
    const float sum = RowExpSum(x, args.chunk, max);
    bool has_rival = !first && std::signbit(args.row_sum[row]);
    const int64_t at = int64_t{args.labels[row]} - args.first;
    if (at >= 0 && at < args.chunk) {
      args.target[row] = x[at];
      // Only of a row's largest is it asked, and only here are its columns read once more.
      constexpr float kNone = -std::numeric_limits<float>::infinity();
      has_rival = x[at] == max && ((!first && old_max == max) || RowMax(x, at, kNone) == max);
    }
    const float total = first ? sum : std::fabs(args.row_sum[row]) * ScalarExp(old_max - max) + sum;
    args.row_sum[row] = has_rival ? -total : total;
    args.row_max[row] = max;
  }
}

void SoftmaxChunkBackwardImpl(const SoftmaxChunkBackwardArgs& args, int64_t begin, int64_t end) {
  const DF d;
  for (int64_t row = begin; row < end; ++row) {
    float* x = static_cast<float*>(args.logits) + row * args.ld;
    const int64_t label = args.labels[row];
    if (label < 0 || label >= args.V) {
      std::fill(x, x + args.chunk, 0.0f);
      continue;
    }
    const double scale =
        args.sequence_scale == nullptr ? args.scale : static_cast<double>(args.sequence_scale[row / args.T]);
    const VF max = hn::Set(d, args.row_max[row]);
    const VF factor = hn::Set(d, static_cast<float>(scale / static_cast<double>(std::fabs(args.row_sum[row]))));
    for (int64_t c = 0; c < args.chunk; c += kVecLanes) {
      const int64_t left = args.chunk - c;
      StoreTail(hn::Mul(Exp(d, hn::Sub(LoadTail(d, x + c, left), max)), factor), d, x + c, left);
    }
    const int64_t at = label - args.first;
    if (at >= 0 && at < args.chunk) x[at] -= static_cast<float>(scale);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(SoftmaxChunkImpl);
HWY_EXPORT(SoftmaxChunkBackwardImpl);

void SoftmaxChunkRows(const SoftmaxChunkArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(SoftmaxChunkImpl)(args, begin, end);
}
void SoftmaxChunkBackwardRows(const SoftmaxChunkBackwardArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(SoftmaxChunkBackwardImpl)(args, begin, end);
}

// Row i goes to lane i mod 16; then the lanes in order.
void AddLoss(const LossArgs& args) {
  std::array<double, 16> lanes = {};
  for (int64_t row = 0; row < args.M; ++row) {
    if (args.labels[row] < 0 || args.labels[row] >= args.V) continue;
    const float sum = args.row_sum[row];
    const double loss = static_cast<double>(args.row_max[row]) + std::log(static_cast<double>(std::fabs(sum))) -
                        static_cast<double>(args.target[row]);
    lanes[row % 16] += loss;
    ++args.record->counted;
    if (!std::isfinite(loss)) {
      args.record->finite = 0;
    } else if (args.target[row] == args.row_max[row] && !std::signbit(sum)) {
      ++args.record->correct;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  args.record->loss_sum += sum;
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
