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
__device__ __forceinline__ void StoreNormalized(const RowPacks<Code::kPacks>& x, float mean, float rstd,
                                                const typename Code::T* gamma, const typename Code::T* beta,
                                                typename Code::T* y, int64_t C) {
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    const int64_t at = Column<BlockTeam>(p);
    float g[kPack], b[kPack], out[kPack];
    LoadPack<true>(gamma, at, C, g);
    LoadPack<true>(beta, at, C, b);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) out[i] = fmaf((x.value[p][i] - mean) * rstd, g[i], b[i]);
    StorePack<Code::kVector>(out, y, at, C);
  }
}

template <typename Code, typename T>
__global__ void __launch_bounds__(kMaxThreads) LayerNormKernel(int64_t C, float eps, const T* x, const T* gamma,
                                                               const T* beta, T* y, float* mean_out, float* rstd_out) {
  const int64_t row = blockIdx.x;
  const RowPacks<Code::kPacks> packs = LoadRow<Code>(x + row * C, C);
  float sum = 0;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum += packs.value[p][i];  // 0 behind the row's end
  }
  const float mean = BlockSum(sum) / static_cast<float>(C);
  // In a second pass, as the difference of two sums would cancel.
  float squares = 0;
  EPS_UNROLL_PACKS
  for (int p = 0; p < Code::kPacks; ++p) {
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float d = Column<BlockTeam>(p) + i < C ? packs.value[p][i] - mean : 0.0f;
      squares = fmaf(d, d, squares);
    }
  }
  const float rstd = 1 / sqrtf(BlockSum(squares) / static_cast<float>(C) + eps);
  if (threadIdx.x == 0) {
    mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
  StoreNormalized<Code>(packs, mean, rstd, gamma, beta, y + row * C, C);
}

template <typename Code, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    LayerNormApplyKernel(int64_t C, const T* x, const T* gamma, const T* beta, const float* mean, const float* rstd,
                         T* y) {
  const int64_t row = blockIdx.x;
  StoreNormalized<Code>(LoadRow<Code>(x + row * C, C), mean[row], rstd[row], gamma, beta, y + row * C, C);
}

// With g = dy * gamma and xhat = (x - mean) * rstd: dx = rstd * (g - mean over C of g - xhat * mean over C of (g *
// xhat)) + dresidual, and what a tile of rows adds to dgamma and dbeta: partials (gridDim.x, 2, C).
template <typename Code, typename T>
__global__ void __launch_bounds__(Code::Walk::kMaxThreads)
    LayerNormBackwardKernel(int64_t M, int64_t C, int64_t rows_per_tile, const T* dy, const T* x, const T* gamma,
                            const float* mean, const float* rstd, const T* dresidual, T* dx, float* partials) {
  using Walk = typename Code::Walk;
  const int64_t begin = blockIdx.x * rows_per_tile, end = begin + rows_per_tile < M ? begin + rows_per_tile : M;
  const float of_each = 1 / static_cast<float>(C);
  RowPacks<Code::kPacks> dgamma = {}, dbeta = {};
  for (int64_t row = begin + Walk::Team(); row < end; row += Walk::Teams()) {
    typename Code::Raw d = {}, v = {}, residual = {};
    if (Code::kHoldsRows) {
      d = Code::Load(dy + row * C, C);
      v = Code::Load(x + row * C, C);
      if (dresidual != nullptr) residual = Code::Load(dresidual + row * C, C);
    }
    const float row_mean = mean[row], row_rstd = rstd[row];
    float sum = 0, dot = 0;
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      float g[kPack];
      if (!Code::kHoldsRows) {
        Code::LoadPart(dy + row * C, p, C, d);
        Code::LoadPart(x + row * C, p, C, v);
      }
      LoadPack<true>(gamma, Column<Walk>(p), C, g);
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float xhat = (v.At(p, i) - row_mean) * row_rstd, dg = d.At(p, i) * g[i];  // dg is 0 behind the row's end
        dgamma.value[p][i] = fmaf(d.At(p, i), xhat, dgamma.value[p][i]);
        dbeta.value[p][i] += d.At(p, i);
        sum += dg;
        dot = fmaf(dg, xhat, dot);
      }
    }
    Walk::SumBoth(sum, dot);
    sum *= of_each;
    dot *= of_each;
    if (Code::kHoldsRows) {
      d.Forget();
      v.Forget();
    }
    EPS_UNROLL_PACKS
    for (int p = 0; p < Code::kPacks; ++p) {
      if (!Code::kHoldsRows) {
        Code::LoadPart(dy + row * C, p, C, d);
        Code::LoadPart(x + row * C, p, C, v);
        if (dresidual != nullptr) Code::LoadPart(dresidual + row * C, p, C, residual);
      }
      float g[kPack], out[kPack];
      LoadPack<true>(gamma, Column<Walk>(p), C, g);
      EPS_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float xhat = (v.At(p, i) - row_mean) * row_rstd;
        out[i] = fmaf(row_rstd, fmaf(-xhat, dot, fmaf(d.At(p, i), g[i], -sum)), residual.At(p, i));
      }
      StorePack<Code::kVector>(out, dx + row * C, Column<Walk>(p), C);
    }
  }
  float* out = partials + int64_t{2} * blockIdx.x * C;
  Walk::template Store<Code>(dgamma, C, out);
  Walk::template Store<Code>(dbeta, C, out + C);
}

// fn(RowCode) for rows of C elements.
template <typename Fn>
void ForRow(Dtype act, int64_t C, const Fn& fn) {
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(C, {}, [&](auto vector) { ForBlockRow<T, decltype(vector)::value>(C, fn); });
  });
}

}  // namespace

void LayerNorm(KernelQueue& queue, Dtype act, const LayerNormArgs& args) {
  ForRow(act, args.C, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "LayerNorm", {.blocks_x = args.M, .threads = ThreadsOfRow(args.C)}, &LayerNormKernel<Code, T>, args.C,
           static_cast<float>(args.eps), static_cast<const T*>(args.x), static_cast<const T*>(args.gamma),
           static_cast<const T*>(args.beta), static_cast<T*>(args.y), args.mean, args.rstd);
  });
}

void LayerNormApply(KernelQueue& queue, Dtype act, const LayerNormApplyArgs& args) {
  ForRow(act, args.C, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "LayerNormApply", {.blocks_x = args.M, .threads = ThreadsOfRow(args.C)},
           &LayerNormApplyKernel<Code, T>, args.C, static_cast<const T*>(args.x), static_cast<const T*>(args.gamma),
           static_cast<const T*>(args.beta), args.mean, args.rstd, static_cast<T*>(args.y));
  });
}

void LayerNormBackward(KernelQueue& queue, Dtype act, const LayerNormBackwardArgs& args) {
  const RowTiling tiling = WalkTiling(args.M, args.C);
  float* partials = static_cast<float*>(args.scratch);
  ForWalk(act, args.C, args.C, {args.dy, args.x, args.dresidual, args.dx}, [&](auto code) {
    using Code = decltype(code);
    using T = typename Code::T;
    Launch(queue, "LayerNormBackward", Code::Walk::Shape(args.C, tiling.num_tiles), &LayerNormBackwardKernel<Code, T>,
           args.M, args.C, tiling.rows_per_tile, static_cast<const T*>(args.dy), static_cast<const T*>(args.x),
           static_cast<const T*>(args.gamma), args.mean, args.rstd, static_cast<const T*>(args.dresidual),
           static_cast<T*>(args.dx), partials);
  });
  AddPartials(queue, partials, tiling.num_tiles, args.C, args.dgamma, args.dbeta);
}

}  // namespace eps::worker::cuda
