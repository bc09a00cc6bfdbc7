#include "gpu_worker/device/cpu/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gpu_worker/device/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/layer_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: these are per target.
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE float RowMean(const float* x, int64_t C) {
  const DF d;
  RowSum sum;
  for (int64_t c = 0; c < C; c += kLogicalLanes) {
    for (int64_t k = 0; k < kAccs; ++k) {
      const int64_t at = c + k * kVecLanes;
      sum.acc[k] = hn::Add(sum.acc[k], LoadTail(d, x + at, C - at));
    }
  }
  return sum.Total() / static_cast<float>(C);
}

// The sum of (x - mean)^2: in a second pass, as the difference of two sums would cancel.
HWY_INLINE float RowSquares(const float* x, float mean, int64_t C) {
  const DF d;
  const VF m = hn::Set(d, mean);
  RowSum sum;
  int64_t c = 0;
  for (; c + kLogicalLanes <= C; c += kLogicalLanes) {
    for (int64_t k = 0; k < kAccs; ++k) {
      const VF v = hn::Sub(hn::LoadU(d, x + c + k * kVecLanes), m);
      sum.acc[k] = hn::MulAdd(v, v, sum.acc[k]);
    }
  }
  for (int64_t k = 0; k < kAccs; ++k) {
    const int64_t left = C - c - k * kVecLanes;
    if (left <= 0) break;
    const auto there = hn::FirstN(d, static_cast<size_t>(std::min(left, kVecLanes)));
    const VF v = hn::IfThenElseZero(there, hn::Sub(hn::MaskedLoad(there, d, x + c + k * kVecLanes), m));
    sum.acc[k] = hn::MulAdd(v, v, sum.acc[k]);
  }
  return sum.Total();
}

// Forward and Apply both end here: the same bits.
HWY_INLINE void NormalizeRow(const float* x, float mean, float rstd, const float* gamma, const float* beta, float* y,
                             int64_t C) {
  const DF d;
  const VF m = hn::Set(d, mean), r = hn::Set(d, rstd);
  for (int64_t c = 0; c < C; c += kVecLanes) {
    const int64_t left = C - c;
    const VF xhat = hn::Mul(hn::Sub(LoadTail(d, x + c, left), m), r);
    StoreTail(hn::MulAdd(xhat, LoadTail(d, gamma + c, left), LoadTail(d, beta + c, left)), d, y + c, left);
  }
}

void LayerNormImpl(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const int64_t C = args.C;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = static_cast<const float*>(args.x) + row * C;
    const float mean = RowMean(x, C);
    const double variance = static_cast<double>(RowSquares(x, mean, C)) / static_cast<double>(C);
    const float rstd = static_cast<float>(1.0 / std::sqrt(variance + args.eps));
    args.mean[row] = mean;
    args.rstd[row] = rstd;
    NormalizeRow(x, mean, rstd, static_cast<const float*>(args.gamma), static_cast<const float*>(args.beta),
                 static_cast<float*>(args.y) + row * C, C);
  }
}

void LayerNormApplyImpl(const LayerNormApplyArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    NormalizeRow(static_cast<const float*>(args.x) + row * args.C, args.mean[row], args.rstd[row],
                 static_cast<const float*>(args.gamma), static_cast<const float*>(args.beta),
                 static_cast<float*>(args.y) + row * args.C, args.C);
  }
}

// With g = dy * gamma and xhat = (x - mean) * rstd:
// dx = rstd * (g - mean over C of g - xhat * mean over C of (g * xhat)); dgamma += dy * xhat; dbeta
// += dy.
void LayerNormBackwardImpl(const LayerNormBackwardArgs& args, int64_t begin, int64_t end, float* partial) {
  const DF d;
  const int64_t C = args.C;
  const float* gamma = static_cast<const float*>(args.gamma);
  float* dgamma = partial;
  float* dbeta = partial + C;
  std::fill(partial, partial + 2 * C, 0.0f);
  for (int64_t row = begin; row < end; ++row) {
    const float* dy = static_cast<const float*>(args.dy) + row * C;
    const float* x = static_cast<const float*>(args.x) + row * C;
    const float* residual = args.dresidual == nullptr ? nullptr : static_cast<const float*>(args.dresidual) + row * C;
    float* dx = static_cast<float*>(args.dx) + row * C;
    const VF mean = hn::Set(d, args.mean[row]), rstd = hn::Set(d, args.rstd[row]);
    RowSum sum_g, sum_gx;
    for (int64_t c = 0; c < C; c += kLogicalLanes) {
      for (int64_t k = 0; k < kAccs; ++k) {
        const int64_t at = c + k * kVecLanes, left = C - at;
        const VF dyv = LoadTail(d, dy + at, left);  // zero behind the row, and so is all that follows from it
        const VF xhat = hn::Mul(hn::Sub(LoadTail(d, x + at, left), mean), rstd);
        const VF g = hn::Mul(dyv, LoadTail(d, gamma + at, left));
        sum_g.acc[k] = hn::Add(sum_g.acc[k], g);
        sum_gx.acc[k] = hn::MulAdd(g, xhat, sum_gx.acc[k]);
        StoreTail(hn::MulAdd(dyv, xhat, LoadTail(d, dgamma + at, left)), d, dgamma + at, left);
        StoreTail(hn::Add(dyv, LoadTail(d, dbeta + at, left)), d, dbeta + at, left);
      }
    }
    const VF mean_g = hn::Set(d, sum_g.Total() / static_cast<float>(C));
    const VF mean_gx = hn::Set(d, sum_gx.Total() / static_cast<float>(C));
    for (int64_t c = 0; c < C; c += kVecLanes) {
      const int64_t left = C - c;
      const VF xhat = hn::Mul(hn::Sub(LoadTail(d, x + c, left), mean), rstd);
      const VF g = hn::Mul(LoadTail(d, dy + c, left), LoadTail(d, gamma + c, left));
      VF v = hn::Mul(hn::NegMulAdd(xhat, mean_gx, hn::Sub(g, mean_g)), rstd);
      if (residual != nullptr) v = hn::Add(v, LoadTail(d, residual + c, left));
      StoreTail(v, d, dx + c, left);
    }
  }
}

void ColumnSumImpl(const ColumnSumArgs& args, int64_t begin, int64_t end, float* partial) {
  const DF d;
  const int64_t N = args.N;
  std::fill(partial, partial + N, 0.0f);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = static_cast<const float*>(args.x) + row * args.ld;
    for (int64_t c = 0; c < N; c += kVecLanes) {
      StoreTail(hn::Add(LoadTail(d, partial + c, N - c), LoadTail(d, x + c, N - c)), d, partial + c, N - c);
    }
  }
}

void AddPartialsImpl(const float* partial, int64_t num_tiles, int64_t stride, int64_t begin, int64_t end, float* out) {
  const DF d;
  for (int64_t c = begin; c < end; c += kVecLanes) {
    VF sum = LoadTail(d, partial + c, end - c);
    for (int64_t tile = 1; tile < num_tiles; ++tile) {
      sum = hn::Add(sum, LoadTail(d, partial + tile * stride + c, end - c));
    }
    StoreTail(hn::Add(LoadTail(d, out + c, end - c), sum), d, out + c, end - c);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(LayerNormImpl);
HWY_EXPORT(LayerNormApplyImpl);
HWY_EXPORT(LayerNormBackwardImpl);
HWY_EXPORT(ColumnSumImpl);
HWY_EXPORT(AddPartialsImpl);

void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LayerNormImpl)(args, begin, end);
}
void LayerNormApplyRows(const LayerNormApplyArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(LayerNormApplyImpl)(args, begin, end);
}
void LayerNormBackwardRows(const LayerNormBackwardArgs& args, int64_t begin, int64_t end, float* partial) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackwardImpl)(args, begin, end, partial);
}
void ColumnSumRows(const ColumnSumArgs& args, int64_t begin, int64_t end, float* partial) {
  HWY_DYNAMIC_DISPATCH(ColumnSumImpl)(args, begin, end, partial);
}
void AddPartials(const float* partial, int64_t num_tiles, int64_t stride, int64_t begin, int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(AddPartialsImpl)(partial, num_tiles, stride, begin, end, out);
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
