#include "gpu_worker/device/cpu/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

// Where a row of `args`, whose rows are `ld` apart for each m, begins.
template <typename Args>
HWY_INLINE int64_t RowStart(const Args& args, int64_t row, int64_t ld) {
  return row / args.heads * ld + row % args.heads * args.C;
}

HWY_INLINE float RowSquares(const float* x, int64_t C) {
  const DF d;
  RowSum sum;
  for (int64_t c = 0; c < C; c += kLogicalLanes) {
    for (int64_t k = 0; k < kAccs; ++k) {
      const int64_t at = c + k * kVecLanes;
      const VF v = LoadTail(d, x + at, C - at);
      sum.acc[k] = hn::MulAdd(v, v, sum.acc[k]);
    }
  }
  return sum.Total();
}

// Forward and Apply both end here: the same bits. y may be x.
HWY_INLINE void NormalizeRow(const float* x, float rstd, const float* gamma, float* y, int64_t C) {
  const DF d;
  const VF r = hn::Set(d, rstd);
  for (int64_t c = 0; c < C; c += kVecLanes) {
    const int64_t left = C - c;
    const VF xhat = hn::Mul(LoadTail(d, x + c, left), r);
    StoreTail(hn::Mul(xhat, LoadTail(d, gamma + c, left)), d, y + c, left);
  }
}

void RmsNormImpl(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = static_cast<const float*>(args.x) + RowStart(args, row, args.ldx);
    const double mean_square = static_cast<double>(RowSquares(x, args.C)) / static_cast<double>(args.C);
    args.rstd[row] = static_cast<float>(1.0 / std::sqrt(mean_square + args.eps));
    NormalizeRow(x, args.rstd[row], static_cast<const float*>(args.gamma),
                 static_cast<float*>(args.y) + RowStart(args, row, args.ldy), args.C);
  }
}

void RmsNormApplyImpl(const RmsNormApplyArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    NormalizeRow(static_cast<const float*>(args.x) + RowStart(args, row, args.ldx), args.rstd[row],
                 static_cast<const float*>(args.gamma), static_cast<float*>(args.y) + RowStart(args, row, args.ldy),
                 args.C);
  }
}

// With g = dy * gamma and xhat = x * rstd: dx = rstd * (g - xhat * mean over C of (g * xhat)); dgamma += dy * xhat.
void RmsNormBackwardImpl(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, float* dgamma) {
  const DF d;
  const int64_t C = args.C;
  const float* gamma = static_cast<const float*>(args.gamma);
  std::fill(dgamma, dgamma + C, 0.0f);
  for (int64_t row = begin; row < end; ++row) {
    const float* dy = static_cast<const float*>(args.dy) + RowStart(args, row, args.lddy);
    const float* x = static_cast<const float*>(args.x) + RowStart(args, row, args.ldx);
    const int64_t to = RowStart(args, row, args.lddx);
    const float* residual = args.dresidual == nullptr ? nullptr : static_cast<const float*>(args.dresidual) + to;
    float* dx = static_cast<float*>(args.dx) + to;
    const VF rstd = hn::Set(d, args.rstd[row]);
    RowSum sum;
    for (int64_t c = 0; c < C; c += kLogicalLanes) {
      for (int64_t k = 0; k < kAccs; ++k) {
        const int64_t at = c + k * kVecLanes, left = C - at;
        const VF dyv = LoadTail(d, dy + at, left);  // zero behind the row, and so is all that follows from it
        const VF xhat = hn::Mul(LoadTail(d, x + at, left), rstd);
        sum.acc[k] = hn::MulAdd(hn::Mul(dyv, LoadTail(d, gamma + at, left)), xhat, sum.acc[k]);
        StoreTail(hn::MulAdd(dyv, xhat, LoadTail(d, dgamma + at, left)), d, dgamma + at, left);
      }
    }
    const VF mean = hn::Set(d, sum.Total() / static_cast<float>(C));
    for (int64_t c = 0; c < C; c += kVecLanes) {
      const int64_t left = C - c;
      const VF xhat = hn::Mul(LoadTail(d, x + c, left), rstd);
      const VF g = hn::Mul(LoadTail(d, dy + c, left), LoadTail(d, gamma + c, left));
      VF v = hn::Mul(hn::NegMulAdd(xhat, mean, g), rstd);
      if (residual != nullptr) v = hn::Add(v, LoadTail(d, residual + c, left));
      StoreTail(v, d, dx + c, left);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(RmsNormImpl);
HWY_EXPORT(RmsNormApplyImpl);
HWY_EXPORT(RmsNormBackwardImpl);

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormImpl)(args, begin, end);
}
void RmsNormApplyRows(const RmsNormApplyArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormApplyImpl)(args, begin, end);
}
void RmsNormBackwardRows(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, float* partial) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackwardImpl)(args, begin, end, partial);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
