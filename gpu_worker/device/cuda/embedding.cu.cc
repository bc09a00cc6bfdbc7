#include "gpu_worker/device/cuda/embedding.h"

#include <algorithm>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

template <typename Wire, typename T, bool kVector>
__global__ void EmbeddingKernel(int64_t tokens_of_sample, int64_t C, const int32_t* tokens, const Wire* wte,
                                const Wire* wpe, T* y, DropoutPlan dropout) {
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kPack;
  const int64_t row = blockIdx.x;
  float a[kPack], b[kPack], factors[kPack];
  LoadPack<kVector>(wte + tokens[row] * C, at, C, a);
  LoadPack<kVector>(wpe + row % tokens_of_sample * C, at, C, b);
  DropoutFactors(dropout, row * C + at, factors);
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) a[i] = factors[i] == 0 ? 0 : (a[i] + b[i]) * factors[i];
  StorePack<kVector>(a, y + row * C, at, C);
}

constexpr int kColumnThreads = 128;  // one column each

// Block (position, columns): nothing unless no earlier position has the same token.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    EmbeddingBackwardKernel(int64_t M, int64_t C, const int32_t* tokens, const T* dy, float* dwte) {
  const int64_t position = blockIdx.x;
  const int32_t token = tokens[position];
  for (int64_t first = 0; first < position; first += blockDim.x) {
    const int64_t at = first + threadIdx.x;
    if (__syncthreads_or(at < position && tokens[at] == token)) return;
  }
  __shared__ uint32_t found[kColumnThreads / kWarpSize];  // which of a stretch of positions have the token
  const int64_t column = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  float sum = column < C ? dwte[token * C + column] : 0;
  for (int64_t first = position; first < M; first += blockDim.x) {
    const int64_t at = first + threadIdx.x;
    const uint32_t ballot = __ballot_sync(kWarpMask, at < M && tokens[at] == token);
    if (threadIdx.x % kWarpSize == 0) found[threadIdx.x / kWarpSize] = ballot;
    __syncthreads();
    for (int warp = 0; warp < kColumnThreads / kWarpSize; ++warp) {
      for (uint32_t left = found[warp]; left != 0; left &= left - 1) {
        const int64_t row = first + warp * kWarpSize + __ffs(static_cast<int>(left)) - 1;
        if (column < C) sum += ToFloat(dy[row * C + column]);
      }
    }
    __syncthreads();
  }
  if (column < C) dwte[token * C + column] = sum;
}

// Every sample has each position once.
template <typename T>
__global__ void PositionBackwardKernel(int64_t B, int64_t n, const T* dy, float* dwpe) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  float sum[kPack];
  LoadPack<true>(dwpe, at, n, sum);
  for (int64_t sample = 0; sample < B; ++sample) {
    float v[kPack];
    LoadPack<false>(dy + sample * n, at, n, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum[i] += v[i];
  }
  StorePack<true>(sum, dwpe, at, n);
}

}  // namespace

void Embedding(KernelQueue& queue, Dtype act, const EmbeddingArgs& args) {
  const int threads =
      static_cast<int>(std::min<int64_t>(kElementThreads, CeilDiv(args.C, kPack * kWarpSize) * kWarpSize));
  const LaunchShape shape = {
      .blocks_x = args.B * args.T, .blocks_y = CeilDiv(CeilDiv(args.C, kPack), threads), .threads = threads};
  ForAct(args.wire_dtype, [&](auto wire) {
    using Wire = typename decltype(wire)::type;
    ForAct(act, [&](auto type) {
      using T = typename decltype(type)::type;
      ForVector(args.C, {args.wte, args.wpe}, [&](auto vector) {
        Launch(queue, "Embedding", shape, &EmbeddingKernel<Wire, T, decltype(vector)::value>, args.T, args.C,
               args.tokens, static_cast<const Wire*>(args.wte), static_cast<const Wire*>(args.wpe),
               static_cast<T*>(args.y), PlanDropout(args.dropout));
      });
    });
  });
}

void EmbeddingBackward(KernelQueue& queue, Dtype act, const EmbeddingBackwardArgs& args) {
  const int64_t M = args.B * args.T;
  if (args.dropout.rate > 0) {
    ApplyDropout(queue, act, {.n = M * args.C, .x = args.dy, .y = args.dy, .dropout = args.dropout});
  }
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = static_cast<const T*>(args.dy);
    Launch(queue, "EmbeddingBackward",
           {.blocks_x = M, .blocks_y = CeilDiv(args.C, kColumnThreads), .threads = kColumnThreads},
           &EmbeddingBackwardKernel<T>, M, args.C, args.tokens, dy, args.dwte);
    Launch(queue, "PositionBackward", ElementShape(args.T * args.C), &PositionBackwardKernel<T>, args.B,
           args.T * args.C, dy, args.dwpe);
  });
}

}  // namespace eps::worker::cuda
