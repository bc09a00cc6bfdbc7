#include "gpu_worker/device/cuda/rms_norm.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <type_traits>

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
struct HeadRows {
  int64_t count, heads, C;
  friend bool operator==(const HeadRows&, const HeadRows&) = default;
  __device__ __forceinline__ int64_t Start(int64_t row, int64_t ld) const {
    return heads == 1 ? row * ld : row / heads * ld + row % heads * C;
  }
};

template <typename Args>
HeadRows RowsOf(const Args& args) {
  return {args.M * args.heads, args.heads, args.C};
}

// Forward and Apply both end here: the same bits. y may be where x was loaded from.
template <typename Code>
__device__ __forceinline__ void StoreNormalized(const RowPacks<Code::kPacks>& x, float rstd,
                                                const typename Code::T* gamma, typename Code::T* y, int64_t C) {
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    const int64_t at = Column<typename Code::Team>(p);
    float g[kPack], out[kPack];
    LoadPack<true>(gamma, at, C, g);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = x.value[p][i] * rstd * g[i];
    StorePack<Code::kVector>(out, y, at, C);
  }
}

template <typename Code, typename T>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(HeadRows rows, int64_t ldx, int64_t ldy, float eps,
                                                             const T* x, const T* gamma, T* y, float* rstd_out) {
  using Team = typename Code::Team;
  const int64_t row = Team::Row();
  if (row >= rows.count) return;  // the whole team
  const RowPacks<Code::kPacks> packs = LoadRow<Code>(x + rows.Start(row, ldx), rows.C);
  float squares = 0;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      squares = fmaf(packs.value[p][i], packs.value[p][i], squares);  // 0 behind the row's end
    }
  }
  const float rstd = 1 / sqrtf(Team::Sum(squares) / static_cast<float>(rows.C) + eps);
  if (Team::Thread() == 0) rstd_out[row] = rstd;
  StoreNormalized<Code>(packs, rstd, gamma, y + rows.Start(row, ldy), rows.C);
}

template <typename Code, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    RmsNormApplyKernel(HeadRows rows, int64_t ldx, int64_t ldy, const T* x, const T* gamma, const float* rstd, T* y) {
  const int64_t row = Code::Team::Row();
  if (row >= rows.count) return;
  StoreNormalized<Code>(LoadRow<Code>(x + rows.Start(row, ldx), rows.C), rstd[row], gamma, y + rows.Start(row, ldy),
                        rows.C);
}

// With g = dy * gamma and xhat = x * rstd: dx = rstd * (g - xhat * mean over C of (g * xhat)) + dresidual, and what a
// tile of rows adds to dgamma: partials (gridDim.x, C). Fused products are written out, so that every instance gives
// the same bits.
template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Walk::kMaxThreads)
    RmsNormBackwardKernel(HeadRows rows, int64_t rows_per_tile, int64_t lddy, int64_t ldx, int64_t lddx, const T* dy,
                          const T* x, const T* gamma, const float* rstd, const T* dresidual, T* dx, float* partials) {
  using Walk = typename Code::Walk;
  const int64_t C = rows.C, begin = blockIdx.x * rows_per_tile;
  const int64_t end = begin + rows_per_tile < rows.count ? begin + rows_per_tile : rows.count;
  const float of_each = 1 / static_cast<float>(C);
  RowPacks<Code::kPacks> dgamma = {};
  for (int64_t row = begin + Walk::Team(); row < end; row += Walk::Teams()) {
    const T *from_dy = dy + rows.Start(row, lddy), *from_x = x + rows.Start(row, ldx);
    const int64_t to = rows.Start(row, lddx);
    typename Code::Raw d = {}, v = {}, residual = {};
    if (Code::kHoldsRows) {
      d = Code::Load(from_dy, C);
      v = Code::Load(from_x, C);
      if (dresidual != nullptr) residual = Code::Load(dresidual + to, C);
    }
    const float row_rstd = rstd[row];
    float dot = 0;
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      float g[kPack];
      if (!Code::kHoldsRows) {
        Code::LoadPart(from_dy, p, C, d);
        Code::LoadPart(from_x, p, C, v);
      }
      LoadPack<true>(gamma, Column<Walk>(p), C, g);
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float xhat = v.At(p, i) * row_rstd;
        dgamma.value[p][i] = fmaf(d.At(p, i), xhat, dgamma.value[p][i]);
        dot = fmaf(d.At(p, i) * g[i], xhat, dot);  // 0 behind the row's end
      }
    }
    dot = Walk::Sum(dot) * of_each;
    if (Code::kHoldsRows) {
      d.Forget();
      v.Forget();
    }
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      if (!Code::kHoldsRows) {
        Code::LoadPart(from_dy, p, C, d);
        Code::LoadPart(from_x, p, C, v);
        if (dresidual != nullptr) Code::LoadPart(dresidual + to, p, C, residual);
      }
      float g[kPack], out[kPack];
      LoadPack<true>(gamma, Column<Walk>(p), C, g);
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        out[i] = fmaf(row_rstd, fmaf(-(v.At(p, i) * row_rstd), dot, d.At(p, i) * g[i]), residual.At(p, i));
      }
      StorePack<Code::kVector>(out, dx + to, Column<Walk>(p), C);
    }
  }
  Walk::template Store<Code>(dgamma, C, partials + static_cast<int64_t>(blockIdx.x) * C);
}

// What the addresses of rows are multiples of, where they are C elements apart for each head and one of `lds` for
// each m.
int64_t StepOf(int64_t C, std::initializer_list<int64_t> lds) {
  int64_t step = C;
  for (const int64_t ld : lds) step = std::gcd(step, ld);
  return step;
}

// fn(RowCode) for rows of C elements. A row that a warp can hold, one pack a lane, is a warp's: a block for each would
// leave most of a multiprocessor idle.
template <typename Fn>
void ForRow(Dtype act, int64_t C, std::initializer_list<int64_t> lds, std::initializer_list<const void*> arrays,
            const Fn& fn) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(StepOf(C, lds), arrays, [&](auto vector) {
      constexpr bool kVector = decltype(vector)::value;
      if (C <= kWarpSize * kPack) {
        fn(RowCode<T, kVector, 1, WarpTeam>());
      } else {
        ForBlockRow<T, kVector>(C, fn);
      }
    });
  });
}

constexpr int kWarpsOfBlock = 8;

template <typename Code>
LaunchShape ShapeOf(const HeadRows& rows) {
  if (std::is_same_v<typename Code::Team, BlockTeam>) return {.blocks_x = rows.count, .threads = ThreadsOfRow(rows.C)};
  return {.blocks_x = CeilDiv(rows.count, kWarpsOfBlock), .threads = kWarpsOfBlock * kWarpSize};
}

}  // namespace

void RmsNorm(KernelQueue& queue, Dtype act, const RmsNormArgs& args) {
  const HeadRows rows = RowsOf(args);
  ForRow(act, args.C, {args.ldx, args.ldy}, {args.x, args.y}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "RmsNorm", ShapeOf<Code>(rows), &RmsNormKernel<Code, T>, rows, args.ldx, args.ldy,
           static_cast<float>(args.eps), static_cast<const T*>(args.x), static_cast<const T*>(args.gamma),
           static_cast<T*>(args.y), args.rstd);
  });
}

void RmsNormApply(KernelQueue& queue, Dtype act, const RmsNormApplyArgs& args) {
  const HeadRows rows = RowsOf(args);
  ForRow(act, args.C, {args.ldx, args.ldy}, {args.x, args.y}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "RmsNormApply", ShapeOf<Code>(rows), &RmsNormApplyKernel<Code, T>, rows, args.ldx, args.ldy,
           static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), args.rstd, static_cast<T*>(args.y));
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
    Launch(queue, "RmsNormBackward", Code::Walk::Shape(args.C, tiling.num_tiles), &RmsNormBackwardKernel<Code, T>, rows,
           tiling.rows_per_tile, args.lddy, args.ldx, args.lddx, static_cast<const T*>(args.dy),
           static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), args.rstd,
           static_cast<const T*>(args.dresidual), static_cast<T*>(args.dx), partials);
  });
  AddPartials(queue, partials, tiling.num_tiles, args.C, args.dgamma);
}

}  // namespace eps::worker::cuda
