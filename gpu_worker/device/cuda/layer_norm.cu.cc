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
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

// Forward and Apply both end here: the same bits.
template <bool kVector, int kPacks, typename T>
__device__ __forceinline__ void StoreNormalized(const RowPacks<kPacks>& x, float mean, float rstd, const T* gamma,
                                                const T* beta, T* y, int64_t C) {
  EPS_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    float g[kPack], b[kPack], out[kPack];
    LoadPack<true>(gamma, Column(p), C, g);
    LoadPack<true>(beta, Column(p), C, b);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = (x.value[p][i] - mean) * rstd * g[i] + b[i];
    StorePack<kVector>(out, y, Column(p), C);
  }
}

template <typename T, bool kVector, int kPacks>
__global__ void __launch_bounds__(kMaxThreads) LayerNormKernel(int64_t C, float eps, const T* x, const T* gamma,
                                                               const T* beta, T* y, float* mean_out, float* rstd_out) {
  const int64_t row = blockIdx.x;
  const RowPacks<kPacks> packs = LoadRow<kVector, kPacks>(x + row * C, C);
  float sum = 0;
  EPS_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum += packs.value[p][i];  // 0 behind the row's end
  }
  const float mean = BlockSum(sum) / static_cast<float>(C);
  // In a second pass, as the difference of two sums would cancel.
  float squares = 0;
  EPS_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float d = Column(p) + i < C ? packs.value[p][i] - mean : 0.0f;
      squares += d * d;
    }
  }
  const float rstd = 1 / sqrtf(BlockSum(squares) / static_cast<float>(C) + eps);
  if (threadIdx.x == 0) {
    mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
  StoreNormalized<kVector>(packs, mean, rstd, gamma, beta, y + row * C, C);
}

template <typename T, bool kVector, int kPacks>
__global__ void __launch_bounds__(kMaxThreads)
    LayerNormApplyKernel(int64_t C, const T* x, const T* gamma, const T* beta, const float* mean, const float* rstd,
                         T* y) {
  const int64_t row = blockIdx.x;
  StoreNormalized<kVector>(LoadRow<kVector, kPacks>(x + row * C, C), mean[row], rstd[row], gamma, beta, y + row * C, C);
}

// A block takes a row.
template <typename T, bool kVector, int kPacks>
__global__ void __launch_bounds__(kMaxThreads)
    LayerNormBackwardKernel(int64_t C, const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd,
                            const T* dresidual, T* dx) {
  const int64_t row = blockIdx.x;
  const RowPacks<kPacks> g = LoadRow<true, kPacks>(gamma, C);
  RowPacks<kPacks> d = LoadRow<kVector, kPacks>(dy + row * C, C);
  RowPacks<kPacks> xhat = LoadRow<kVector, kPacks>(x + row * C, C);
  const float row_mean = mean[row], row_rstd = rstd[row];
  float sum = 0, dot = 0;
  EPS_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      xhat.value[p][i] = (xhat.value[p][i] - row_mean) * row_rstd;
      d.value[p][i] *= g.value[p][i];  // 0 behind the row's end
      sum += d.value[p][i];
      dot += d.value[p][i] * xhat.value[p][i];
    }
  }
  sum = BlockSum(sum) / static_cast<float>(C);
  dot = BlockSum(dot) / static_cast<float>(C);
  EPS_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    float residual[kPack] = {}, out[kPack];
    if (dresidual != nullptr) LoadPack<kVector>(dresidual + row * C, Column(p), C, residual);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      out[i] = row_rstd * (d.value[p][i] - sum - xhat.value[p][i] * dot) + residual[i];
    }
    StorePack<kVector>(out, dx + row * C, Column(p), C);
  }
}

// What a tile of rows adds to dgamma and dbeta: partials (gridDim.y, 2, C). A block takes 256 columns, a pack for each lane:
// each warp every 8th row, then the warps in order.
constexpr int kGradientWarps = 8;
constexpr int kGradientColumns = kWarpSize * kPack;

template <typename T, bool kVector>
__global__ void __launch_bounds__(kGradientWarps* kWarpSize)
    LayerNormGradientKernel(int64_t M, int64_t C, int64_t rows_per_tile, const T* dy, const T* x, const float* mean,
                            const float* rstd, float* partials) {
  __shared__ float warp_sums[2][kGradientWarps][kGradientColumns];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGradientColumns;
  const int64_t begin = blockIdx.y * rows_per_tile, end = begin + rows_per_tile < M ? begin + rows_per_tile : M;
  float dgamma[kPack] = {}, dbeta[kPack] = {};
  for (int64_t row = begin + warp; row < end; row += kGradientWarps) {
    float d[kPack], v[kPack];
    LoadPack<kVector>(dy + row * C, first + lane * kPack, C, d);
    LoadPack<kVector>(x + row * C, first + lane * kPack, C, v);
    const float row_mean = mean[row], row_rstd = rstd[row];
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      dgamma[i] += d[i] * ((v[i] - row_mean) * row_rstd);
      dbeta[i] += d[i];
    }
  }
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) {
    warp_sums[0][warp][lane * kPack + i] = dgamma[i];
    warp_sums[1][warp][lane * kPack + i] = dbeta[i];
  }
  __syncthreads();
  const int64_t column = first + threadIdx.x;
  if (column >= C) return;
  EPS_UNROLL
  for (int which = 0; which < 2; ++which) {
    float total = 0;
    EPS_UNROLL
    for (int i = 0; i < kGradientWarps; ++i) total += warp_sums[which][i][threadIdx.x];
    partials[(2 * static_cast<int64_t>(blockIdx.y) + which) * C + column] = total;
  }
}

// fn(Type, Flag, Packs) for rows of C elements.
template <typename Fn>
void ForRow(Dtype act, int64_t C, const Fn& fn) {
  ForAct(act, [&](auto type) {
    ForVector(C, {}, [&](auto vector) { ForPacks(C, vector, [&](auto packs) { fn(type, vector, packs); }); });
  });
}

}  // namespace

void LayerNorm(KernelQueue& queue, Dtype act, const LayerNormArgs& args) {
  ForRow(act, args.C, [&](auto type, auto vector, auto packs) {
    using T = typename decltype(type)::type;
    Launch(queue, "LayerNorm", {.blocks_x = args.M, .threads = ThreadsOfRow(args.C)},
           &LayerNormKernel<T, decltype(vector)::value, decltype(packs)::value>, args.C, static_cast<float>(args.eps),
           static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), static_cast<const T*>(args.beta),
           static_cast<T*>(args.y), args.mean, args.rstd);
  });
}

void LayerNormApply(KernelQueue& queue, Dtype act, const LayerNormApplyArgs& args) {
  ForRow(act, args.C, [&](auto type, auto vector, auto packs) {
    using T = typename decltype(type)::type;
    Launch(queue, "LayerNormApply", {.blocks_x = args.M, .threads = ThreadsOfRow(args.C)},
           &LayerNormApplyKernel<T, decltype(vector)::value, decltype(packs)::value>, args.C,
           static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), static_cast<const T*>(args.beta),
           args.mean, args.rstd, static_cast<T*>(args.y));
  });
}

void LayerNormBackward(KernelQueue& queue, Dtype act, const LayerNormBackwardArgs& args) {
  const RowTiling tiling = ReductionTiling(args.M);
  float* partials = static_cast<float*>(args.scratch);
  // First what reads dy, which dx may be.
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.C, {args.dy, args.x}, [&](auto vector) {
      Launch(queue, "LayerNormGradient",
             {.blocks_x = CeilDiv(args.C, kGradientColumns),
              .blocks_y = tiling.num_tiles,
              .threads = kGradientWarps * kWarpSize},
             &LayerNormGradientKernel<T, decltype(vector)::value>, args.M, args.C, tiling.rows_per_tile,
             static_cast<const T*>(args.dy), static_cast<const T*>(args.x), args.mean, args.rstd, partials);
    });
  });
  AddPartials(queue, partials, tiling.num_tiles, args.C, args.dgamma, args.dbeta);
  ForRow(act, args.C, [&](auto type, auto vector, auto packs) {
    using T = typename decltype(type)::type;
    Launch(queue, "LayerNormBackward", {.blocks_x = args.M, .threads = ThreadsOfRow(args.C)},
           &LayerNormBackwardKernel<T, decltype(vector)::value, decltype(packs)::value>, args.C,
           static_cast<const T*>(args.dy), static_cast<const T*>(args.x), static_cast<const T*>(args.gamma), args.mean,
           args.rstd, static_cast<const T*>(args.dresidual), static_cast<T*>(args.dx));
  });
}

}  // namespace eps::worker::cuda
