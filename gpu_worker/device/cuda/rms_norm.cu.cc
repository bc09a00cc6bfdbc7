#include "gpu_worker/device/cuda/rms_norm.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>

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

// Row (m, h) is the (m * heads + h)-th of `count`.
struct HeadRow {
  int64_t m, first_column;
  __device__ __forceinline__ int64_t Start(int64_t ld) const { return m * ld + first_column; }
};
struct HeadRows {
  int64_t count, heads, C;
  friend bool operator==(const HeadRows&, const HeadRows&) = default;
  __device__ __forceinline__ HeadRow Row(int64_t row) const {
    if (heads == 1) return {row, 0};  // a division takes as long as much of a row
    return {row / heads, row % heads * C};
  }
};

template <typename Args>
HeadRows RowsOf(const Args& args) {
  return {args.M * args.heads, args.heads, args.C};
}

// Forward and Apply both end here: the same bits. y may be where x was loaded from.
template <typename Code>
__device__ __forceinline__ void StoreNormalized(const typename Code::Raw& x, float rstd, const typename Code::T* gamma,
                                                typename Code::T* y, int64_t C) {
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    const int64_t at = Column<typename Code::Team>(p);
    RawRow<typename Code::T, 1> g;
    g.words[0] = LoadWords<Code::kVector>(gamma, at, C);
    float out[kPack];
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = x.At(p, i) * rstd * g.At(0, i);
    StoreWords<Code::kVector>(out, y, at, C);
  }
}

// gamma is nobody's to write meanwhile: loads of it need not wait for what is stored of y.
template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Team::kMaxThreads, Code::kBlocks)
    RmsNormKernel(HeadRows rows, int64_t ldx, int64_t ldy, float eps, const T* x, const T* __restrict__ gamma, T* y,
                  float* rstd_out) {
  using Team = typename Code::Team;
  const int64_t row = Team::Row();
  if (row >= rows.count) return;  // the whole team
  const HeadRow at = rows.Row(row);
  typename Code::Raw raw = LoadRow<Code>(x + at.Start(ldx), rows.C);
  float squares = 0;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) squares = fmaf(raw.At(p, i), raw.At(p, i), squares);  // 0 behind the row's end
  }
  const float rstd = 1 / sqrtf(Team::template Sum<0>(squares) / static_cast<float>(rows.C) + eps);
  raw.Forget();
  if (Team::Thread() == 0) rstd_out[row] = rstd;
  StoreNormalized<Code>(raw, rstd, gamma, y + at.Start(ldy), rows.C);
}

template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Team::kMaxThreads, Code::kBlocks)
    RmsNormApplyKernel(HeadRows rows, int64_t ldx, int64_t ldy, const T* x, const T* __restrict__ gamma,
                       const float* rstd, T* y) {
  const int64_t row = Code::Team::Row();
  if (row >= rows.count) return;
  const HeadRow at = rows.Row(row);
  StoreNormalized<Code>(LoadRow<Code>(x + at.Start(ldx), rows.C), rstd[row], gamma, y + at.Start(ldy), rows.C);
}

// With g = dy * gamma and xhat = x * rstd: dx = rstd * (g - xhat * mean over C of (g * xhat)) + dresidual, and what a
// tile of rows adds to dgamma: partials (gridDim.x, C). Fused products are written out, so that every instance gives
// the same bits.
template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Walk::kMaxThreads, Code::kBlocks)
    RmsNormBackwardKernel(HeadRows head_rows, int64_t rows_per_tile, int64_t lddy, int64_t ldx, int64_t lddx,
                          const T* dy, const T* x, const T* __restrict__ gamma, const float* rstd, const T* dresidual,
                          T* dx, float* partials) {
  const int64_t C = head_rows.C;
  typename Code::Walk walk(C);
  RowsAhead<Code> rows(walk, C);
  const int64_t tile = blockIdx.x * rows_per_tile;
  const int num_rows =
      static_cast<int>(tile + rows_per_tile < head_rows.count ? rows_per_tile : head_rows.count - tile);
  const T* added = dresidual == nullptr ? dy : dresidual;
  // Behind the tile's end a row is 0, and adds nothing.
  const auto begin = [&](int i) {
    const int64_t row = tile + i;
    const HeadRow at = head_rows.Row(row);
    const bool there = i < num_rows;
    rows.Begin(0, dy, at.Start(lddy), there);
    rows.Begin(1, x, at.Start(ldx), there);
    rows.Begin(2, added, at.Start(lddx), there && dresidual != nullptr);
    rows.BeginNumber(0, rstd, row, there);
    rows.End();
  };
  EPS_UNROLL
  for (int ahead = 0; ahead < rows.kAhead; ++ahead) begin(walk.team() + ahead * walk.teams());
  const float of_each = 1 / static_cast<float>(C);
  RowPacks<Code::kPacks> dgamma = {};
  for (int first = 0; first < num_rows; first += walk.teams()) {
    const int i = first + walk.team();
    const int64_t row = tile + i;
    const HeadRow at = head_rows.Row(row);
    const bool there = i < num_rows;
    begin(i + rows.kAhead * walk.teams());
    rows.Wait();
    const float row_rstd = rows.Number(0, rstd, row, there);
    RawRow<T, 1> d, v, g, residual;
    float dot = 0;
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      d.words[0] = rows.Words(0, p, dy, at.Start(lddy), there);
      v.words[0] = rows.Words(1, p, x, at.Start(ldx), there);
      g.words[0] = LoadWords<Code::kVector>(gamma, walk.Column(p), C);
      EPS_UNROLL
      for (int e = 0; e < kPack; ++e) {
        const float xhat = v.At(0, e) * row_rstd;
        dgamma.value[p][e] = fmaf(d.At(0, e), xhat, dgamma.value[p][e]);
        dot = fmaf(d.At(0, e) * g.At(0, e), xhat, dot);  // 0 behind the row's end
      }
    }
    dot = walk.Sum(dot) * of_each;
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      d.words[0] = rows.Words(0, p, dy, at.Start(lddy), there);
      v.words[0] = rows.Words(1, p, x, at.Start(ldx), there);
      g.words[0] = LoadWords<Code::kVector>(gamma, walk.Column(p), C);
      residual.words[0] = rows.Words(2, p, added, at.Start(lddx), there && dresidual != nullptr);
      float out[kPack];
      EPS_UNROLL
      for (int e = 0; e < kPack; ++e) {
        out[e] = fmaf(row_rstd, fmaf(-(v.At(0, e) * row_rstd), dot, d.At(0, e) * g.At(0, e)), residual.At(0, e));
      }
      StoreWords<Code::kVector>(out, dx + (there ? at.Start(lddx) : 0), walk.Column(p), there ? C : 0);
    }
  }
  walk.template Store<Code>(dgamma, C, partials + static_cast<int64_t>(blockIdx.x) * C);
}

// What the addresses of rows are multiples of, where they are C elements apart for each head and one of `lds` for
// each m.
int64_t StepOf(int64_t C, std::initializer_list<int64_t> lds) {
  int64_t step = C;
  for (const int64_t ld : lds) step = std::gcd(step, ld);
  return step;
}

// fn(RowCode) for rows of C elements.
template <typename Fn>
void ForRow(Dtype act, int64_t C, std::initializer_list<int64_t> lds, std::initializer_list<const void*> arrays,
            const Fn& fn) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(StepOf(C, lds), arrays, [&](auto vector) { ForTeamRow<T, decltype(vector)::value>(C, fn); });
  });
}

}  // namespace

void RmsNorm(KernelQueue& queue, Dtype act, const RmsNormArgs& args) {
  const HeadRows rows = RowsOf(args);
  ForRow(act, args.C, {args.ldx, args.ldy}, {args.x, args.y}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "RmsNorm", Code::Team::Shape(rows.count, rows.C), &RmsNormKernel<Code, T>, rows, args.ldx, args.ldy,
           static_cast<float>(args.eps), static_cast<const T*>(args.x), static_cast<const T*>(args.gamma),
           static_cast<T*>(args.y), args.rstd);
  });
}

void RmsNormApply(KernelQueue& queue, Dtype act, const RmsNormApplyArgs& args) {
  const HeadRows rows = RowsOf(args);
  ForRow(act, args.C, {args.ldx, args.ldy}, {args.x, args.y}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "RmsNormApply", Code::Team::Shape(rows.count, rows.C), &RmsNormApplyKernel<Code, T>, rows, args.ldx,
           args.ldy, static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), args.rstd,
           static_cast<T*>(args.y));
  });
}

void RmsNormBackward(KernelQueue& queue, Dtype act, const RmsNormBackwardArgs& args) {
  const HeadRows rows = RowsOf(args);
  const RowTiling tiling = WalkTiling(rows.count, args.C);
  float* partials = static_cast<float*>(args.scratch);
  const int64_t step = StepOf(args.C, {args.lddy, args.ldx, args.lddx});
  ForWalk(act, args.C, step, {args.dy, args.x, args.dresidual, args.dx}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "RmsNormBackward", Code::Shape(args.C, tiling.num_tiles), &RmsNormBackwardKernel<Code, T>, rows,
           tiling.rows_per_tile, args.lddy, args.ldx, args.lddx, static_cast<const T*>(args.dy),
           static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), args.rstd,
           static_cast<const T*>(args.dresidual), static_cast<T*>(args.dx), partials);
  });
  AddPartials(queue, partials, tiling.num_tiles, args.C, args.dgamma);
}

}  // namespace eps::worker::cuda
