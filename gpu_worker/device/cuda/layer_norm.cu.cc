#include "gpu_worker/device/cuda/layer_norm.h"

#include <cmath>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/reduction.h"
#include "gpu_worker/device/cuda/row_packs.h"
#include "gpu_worker/device/cuda/row_walk.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

// Forward and Apply both end here: the same bits.
template <typename Code>
__device__ __forceinline__ void StoreNormalized(const typename Code::Raw& x, float mean, float rstd,
                                                const typename Code::T* gamma, const typename Code::T* beta,
                                                typename Code::T* y, int64_t C) {
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    const int64_t at = Column<typename Code::Team>(p);
    RawRow<typename Code::T, 1> g, b;
    g.words[0] = LoadWords<Code::kVector>(gamma, at, C);
    b.words[0] = LoadWords<Code::kVector>(beta, at, C);
    float out[kPack];
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = fmaf((x.At(p, i) - mean) * rstd, g.At(0, i), b.At(0, i));
    StoreWords<Code::kVector>(out, y, at, C);
  }
}

// gamma and beta are nobody's to write meanwhile: loads of them need not wait for what is stored of y.
template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Team::kMaxThreads, Code::kBlocks)
    LayerNormKernel(int64_t M, int64_t C, float eps, const T* x, const T* __restrict__ gamma,
                    const T* __restrict__ beta, T* y, float* mean_out, float* rstd_out) {
  using Team = typename Code::Team;
  const int64_t row = Team::Row();
  if (row >= M) return;  // the whole team
  typename Code::Raw raw = LoadRow<Code>(x + row * C, C);
  float sum = 0;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum += raw.At(p, i);  // 0 behind the row's end
  }
  const float mean = Team::template Sum<0>(sum) / static_cast<float>(C);
  raw.Forget();
  // In a second pass, as the difference of two sums would cancel.
  float squares = 0;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float d = InRow<Code>(Column<Team>(p), i, C) ? raw.At(p, i) - mean : 0.0f;
      squares = fmaf(d, d, squares);
    }
  }
  const float rstd = 1 / sqrtf(Team::template Sum<1>(squares) / static_cast<float>(C) + eps);
  raw.Forget();
  if (Team::Thread() == 0) {
    mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
  StoreNormalized<Code>(raw, mean, rstd, gamma, beta, y + row * C, C);
}

template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Team::kMaxThreads, Code::kBlocks)
    LayerNormApplyKernel(int64_t M, int64_t C, const T* x, const T* __restrict__ gamma, const T* __restrict__ beta,
                         const float* mean, const float* rstd, T* y) {
  const int64_t row = Code::Team::Row();
  if (row >= M) return;
  StoreNormalized<Code>(LoadRow<Code>(x + row * C, C), mean[row], rstd[row], gamma, beta, y + row * C, C);
}

// With g = dy * gamma and xhat = (x - mean) * rstd: dx = rstd * (g - mean over C of g - xhat * mean over C of (g *
// xhat)) + dresidual, and what a tile of rows adds to dgamma and dbeta: partials (gridDim.x, 2, C).
template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Walk::kMaxThreads, Code::kBlocks)
    LayerNormBackwardKernel(int64_t M, int64_t C, int64_t rows_per_tile, const T* dy, const T* x,
                            const T* __restrict__ gamma, const float* mean, const float* rstd, const T* dresidual,
                            T* dx, float* partials) {
  typename Code::Walk walk(C);
  RowsAhead<Code> rows(walk, C);
  const int64_t tile = blockIdx.x * rows_per_tile;
  const int num_rows = static_cast<int>(tile + rows_per_tile < M ? rows_per_tile : M - tile);
  const T* added = dresidual == nullptr ? dy : dresidual;
  // Behind the tile's end a row is 0, and adds nothing.
  const auto begin = [&](int i) {
    const int64_t row = tile + i;
    const bool there = i < num_rows;
    rows.Begin(0, dy, row * C, there);
    rows.Begin(1, x, row * C, there);
    rows.Begin(2, added, row * C, there && dresidual != nullptr);
    rows.BeginNumber(0, mean, row, there);
    rows.BeginNumber(1, rstd, row, there);
    rows.End();
  };
  EPS_UNROLL
  for (int ahead = 0; ahead < rows.kAhead; ++ahead) begin(walk.team() + ahead * walk.teams());
  const float of_each = 1 / static_cast<float>(C);
  RowPacks<Code::kPacks> dgamma = {}, dbeta = {};
  for (int first = 0; first < num_rows; first += walk.teams()) {
    const int i = first + walk.team();
    const int64_t row = tile + i;
    const bool there = i < num_rows;
    begin(i + rows.kAhead * walk.teams());
    rows.Wait();
    const float row_mean = rows.Number(0, mean, row, there), row_rstd = rows.Number(1, rstd, row, there);
    RawRow<T, 1> d, v, g, residual;
    float sum = 0, dot = 0;
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      d.words[0] = rows.Words(0, p, dy, row * C, there);
      v.words[0] = rows.Words(1, p, x, row * C, there);
      g.words[0] = LoadWords<Code::kVector>(gamma, walk.Column(p), C);
      EPS_UNROLL
      for (int e = 0; e < kPack; ++e) {
        // dg is 0 behind the row's end.
        const float xhat = (v.At(0, e) - row_mean) * row_rstd, dg = d.At(0, e) * g.At(0, e);
        dgamma.value[p][e] = fmaf(d.At(0, e), xhat, dgamma.value[p][e]);
        dbeta.value[p][e] += d.At(0, e);
        sum += dg;
        dot = fmaf(dg, xhat, dot);
      }
    }
    walk.SumBoth(sum, dot);
    sum *= of_each;
    dot *= of_each;
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      d.words[0] = rows.Words(0, p, dy, row * C, there);
      v.words[0] = rows.Words(1, p, x, row * C, there);
      g.words[0] = LoadWords<Code::kVector>(gamma, walk.Column(p), C);
      residual.words[0] = rows.Words(2, p, added, row * C, there && dresidual != nullptr);
      float out[kPack];
      EPS_UNROLL
      for (int e = 0; e < kPack; ++e) {
        const float xhat = (v.At(0, e) - row_mean) * row_rstd;
        out[e] = fmaf(row_rstd, fmaf(-xhat, dot, fmaf(d.At(0, e), g.At(0, e), -sum)), residual.At(0, e));
      }
      StoreWords<Code::kVector>(out, dx + (there ? row * C : 0), walk.Column(p), there ? C : 0);
    }
  }
  float* out = partials + int64_t{2} * blockIdx.x * C;
  walk.template Store<Code>(dgamma, C, out);
  walk.template Store<Code>(dbeta, C, out + C);
}

// fn(RowCode) for rows of C elements.
template <typename Fn>
void ForRow(Dtype act, int64_t C, const Fn& fn) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(C, {}, [&](auto vector) { ForTeamRow<T, decltype(vector)::value>(C, fn); });
  });
}

}  // namespace

void LayerNorm(KernelQueue& queue, Dtype act, const LayerNormArgs& args) {
  ForRow(act, args.C, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "LayerNorm", Code::Team::Shape(args.M, args.C), &LayerNormKernel<Code, T>, args.M, args.C,
           static_cast<float>(args.eps), static_cast<const T*>(args.x), static_cast<const T*>(args.gamma),
           static_cast<const T*>(args.beta), static_cast<T*>(args.y), args.mean, args.rstd);
  });
}

void LayerNormApply(KernelQueue& queue, Dtype act, const LayerNormApplyArgs& args) {
  ForRow(act, args.C, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "LayerNormApply", Code::Team::Shape(args.M, args.C), &LayerNormApplyKernel<Code, T>, args.M, args.C,
           static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), static_cast<const T*>(args.beta),
           args.mean, args.rstd, static_cast<T*>(args.y));
  });
}

void LayerNormBackward(KernelQueue& queue, Dtype act, const LayerNormBackwardArgs& args) {
  const RowTiling tiling = WalkTiling(args.M, args.C);
  float* partials = static_cast<float*>(args.scratch);
  ForWalk(act, args.C, args.C, {args.dy, args.x, args.dresidual, args.dx}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "LayerNormBackward", Code::Shape(args.C, tiling.num_tiles), &LayerNormBackwardKernel<Code, T>, args.M,
           args.C, tiling.rows_per_tile, static_cast<const T*>(args.dy), static_cast<const T*>(args.x),
           static_cast<const T*>(args.gamma), args.mean, args.rstd, static_cast<const T*>(args.dresidual),
           static_cast<T*>(args.dx), partials);
  });
  AddPartials(queue, partials, tiling.num_tiles, args.C, args.dgamma, args.dbeta);
}

}  // namespace eps::worker::cuda
