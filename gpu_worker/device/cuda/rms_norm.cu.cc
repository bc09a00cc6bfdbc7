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

// How rows of one width, alignment and dtype are computed.
template <typename Act, bool kWhole, int kCount, typename RowTeam>
struct RowCode {
  using T = Act;
  using Team = RowTeam;
  static constexpr bool kVector = kWhole;
  static constexpr int kPacks = kCount;
};

// Forward and Apply both end here: the same bits. y may be where x was loaded from.
template <typename Code>
__device__ __forceinline__ void StoreNormalized(const RowPacks<Code::kPacks>& x, float rstd,
                                                const typename Code::T* gamma, typename Code::T* y, int64_t C) {
  EPS_UNROLL
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
__device__ __forceinline__ RowPacks<Code::kPacks> Load(const T* row, int64_t C) {
  return LoadRow<Code::kVector, Code::kPacks, typename Code::Team>(row, C);
}

template <typename Code, typename T>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(HeadRows rows, int64_t ldx, int64_t ldy, float eps,
                                                             const T* x, const T* gamma, T* y, float* rstd_out) {
  using Team = typename Code::Team;
  const int64_t row = Team::Row();
  if (row >= rows.count) return;  // the whole team
  const RowPacks<Code::kPacks> packs = Load<Code>(x + rows.Start(row, ldx), rows.C);
  float squares = 0;
  EPS_UNROLL
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
  StoreNormalized<Code>(Load<Code>(x + rows.Start(row, ldx), rows.C), rstd[row], gamma, y + rows.Start(row, ldy),
                        rows.C);
}

// With g = dy * gamma and xhat = x * rstd: dx = rstd * (g - xhat * mean over C of (g * xhat)) + dresidual. Fused
// products are written out, so that every instance gives the same bits.
template <typename Code, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    RmsNormBackwardKernel(HeadRows rows, int64_t lddy, int64_t ldx, int64_t lddx, const T* dy, const T* x,
                          const T* gamma, const float* rstd, const T* dresidual, T* dx) {
  using Team = typename Code::Team;
  const int64_t row = Team::Row();
  if (row >= rows.count) return;
  RowPacks<Code::kPacks> d = Load<Code>(dy + rows.Start(row, lddy), rows.C);
  RowPacks<Code::kPacks> xhat = Load<Code>(x + rows.Start(row, ldx), rows.C);
  const float row_rstd = rstd[row];
  float dot = 0;
  EPS_UNROLL
  for (int p = 0; p < Code::kPacks; ++p) {
    float g[kPack];
    LoadPack<true>(gamma, Column<Team>(p), rows.C, g);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      xhat.value[p][i] *= row_rstd;
      d.value[p][i] *= g[i];  // 0 behind the row's end
      dot = fmaf(d.value[p][i], xhat.value[p][i], dot);
    }
  }
  dot = Team::Sum(dot) / static_cast<float>(rows.C);
  const int64_t to = rows.Start(row, lddx);
  EPS_UNROLL
  for (int p = 0; p < Code::kPacks; ++p) {
    float residual[kPack] = {}, out[kPack];
    if (dresidual != nullptr) LoadPack<Code::kVector>(dresidual + to, Column<Team>(p), rows.C, residual);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      out[i] = fmaf(row_rstd, fmaf(-xhat.value[p][i], dot, d.value[p][i]), residual[i]);
    }
    StorePack<Code::kVector>(out, dx + to, Column<Team>(p), rows.C);
  }
}

// What a tile of rows adds to dgamma: partials (gridDim.y, C). A block takes 256 columns, a pack for each lane: each
// warp every 8th row, then the warps in order.
constexpr int kGradientWarps = 8;
constexpr int kGradientColumns = kWarpSize * kPack;

template <typename T, bool kVector>
__global__ void __launch_bounds__(kGradientWarps* kWarpSize)
    RmsNormGradientKernel(HeadRows rows, int64_t lddy, int64_t ldx, int64_t rows_per_tile, const T* dy, const T* x,
                          const float* rstd, float* partials) {
  __shared__ float warp_sums[kGradientWarps][kGradientColumns];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGradientColumns;
  const int64_t begin = blockIdx.y * rows_per_tile;
  const int64_t end = begin + rows_per_tile < rows.count ? begin + rows_per_tile : rows.count;
  float dgamma[kPack] = {};
  for (int64_t row = begin + warp; row < end; row += kGradientWarps) {
    float d[kPack], v[kPack];
    LoadPack<kVector>(dy + rows.Start(row, lddy), first + lane * kPack, rows.C, d);
    LoadPack<kVector>(x + rows.Start(row, ldx), first + lane * kPack, rows.C, v);
    const float row_rstd = rstd[row];
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) dgamma[i] = fmaf(d[i], v[i] * row_rstd, dgamma[i]);
  }
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) warp_sums[warp][lane * kPack + i] = dgamma[i];
  __syncthreads();
  const int64_t column = first + threadIdx.x;
  if (column >= rows.C) return;
  float total = 0;
  EPS_UNROLL
  for (int i = 0; i < kGradientWarps; ++i) total += warp_sums[i][threadIdx.x];
  partials[blockIdx.y * rows.C + column] = total;
}

// ForVector for rows that are C elements apart for each head, and one of `lds` for each m.
template <typename Fn>
void ForVectorRows(int64_t C, std::initializer_list<int64_t> lds, std::initializer_list<const void*> arrays,
                   const Fn& fn) {
  int64_t step = C;
  for (const int64_t ld : lds) step = std::gcd(step, ld);
  ForVector(step, arrays, fn);
}

// fn(RowCode) for rows of C elements. A row that a warp can hold, one pack a lane, is a warp's: a block for each would
// leave most of a multiprocessor idle.
template <typename Fn>
void ForRow(Dtype act, int64_t C, std::initializer_list<int64_t> lds, std::initializer_list<const void*> arrays,
            const Fn& fn) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVectorRows(C, lds, arrays, [&](auto vector) {
      constexpr bool kVector = decltype(vector)::value;
      if (C <= kWarpSize * kPack) {
        fn(RowCode<T, kVector, 1, WarpTeam>());
      } else {
        ForPacks(C, vector, [&](auto packs) { fn(RowCode<T, kVector, decltype(packs)::value, BlockTeam>()); });
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
  const RowTiling tiling = ReductionTiling(rows.count);
  float* partials = static_cast<float*>(args.scratch);
  // First what reads dy, which dx may be.
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVectorRows(args.C, {args.lddy, args.ldx}, {args.dy, args.x}, [&](auto vector) {
      Launch(queue, "RmsNormGradient",
             {.blocks_x = CeilDiv(args.C, kGradientColumns),
              .blocks_y = tiling.num_tiles,
              .threads = kGradientWarps * kWarpSize},
             &RmsNormGradientKernel<T, decltype(vector)::value>, rows, args.lddy, args.ldx, tiling.rows_per_tile,
             static_cast<const T*>(args.dy), static_cast<const T*>(args.x), args.rstd, partials);
    });
  });
  AddPartials(queue, partials, tiling.num_tiles, args.C, args.dgamma);
  ForRow(act, args.C, {args.lddy, args.ldx, args.lddx}, {args.dy, args.x, args.dresidual, args.dx}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "RmsNormBackward", ShapeOf<Code>(rows), &RmsNormBackwardKernel<Code, T>, rows, args.lddy, args.ldx,
           args.lddx, static_cast<const T*>(args.dy), static_cast<const T*>(args.x), static_cast<const T*>(args.gamma),
           args.rstd, static_cast<const T*>(args.dresidual), static_cast<T*>(args.dx));
  });
}

}  // namespace eps::worker::cuda
