#include "gpu_worker/device/cuda/reduction.h"

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/act_dispatch.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/cuda/tile_sums.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

template <typename T, bool kVector>
__global__ void ColumnSumKernel(int64_t M, int64_t N, int64_t ld, int64_t rows_per_tile, const T* x, float* partials) {
  SumColumns(M, N, rows_per_tile, partials,
             [&](int64_t row, int64_t at, float(&v)[kPack]) { LoadPack<kVector>(x + row * ld, at, N, v); });
}

// A block adds up 32 columns, a lane each: each warp every 16th tile, then the warps in order.
constexpr int kPartialWarps = 16;

__global__ void __launch_bounds__(kPartialWarps* kWarpSize)
    AddPartialsKernel(const float* partials, int64_t num_tiles, int64_t stride, int64_t N, float* first_out,
                      float* second_out) {
  __shared__ float warp_sums[kPartialWarps][kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpSize + lane;
  const float* in = partials + blockIdx.y * N + column;
  float sum = 0;
  if (column < N) {
    for (int64_t tile = warp; tile < num_tiles; tile += kPartialWarps) sum += in[tile * stride];
  }
  warp_sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= N) return;
  float total = 0;
  EPS_UNROLL
  for (int i = 0; i < kPartialWarps; ++i) total += warp_sums[i][lane];
  float* out = blockIdx.y == 0 ? first_out : second_out;
  out[column] += total;
}

}  // namespace

void AddPartials(KernelQueue& queue, const float* partials, int64_t num_tiles, int64_t N, float* out,
                 float* second_out) {
  const int64_t outs = second_out == nullptr ? 1 : 2;
  Launch(queue, "AddPartials",
         {.blocks_x = CeilDiv(N, kWarpSize), .blocks_y = outs, .threads = kPartialWarps * kWarpSize},
         &AddPartialsKernel, partials, num_tiles, outs * N, N, out, second_out);
}

LaunchShape ColumnSumShape(int64_t N, const RowTiling& tiling) {
  return {.blocks_x = CeilDiv(N, kTileColumns), .blocks_y = tiling.num_tiles, .threads = kTileWarps * kWarpSize};
}

void ColumnSum(KernelQueue& queue, Dtype act, const ColumnSumArgs& args) {
  const RowTiling tiling = ReductionTiling(args.M);
  float* partials = static_cast<float*>(args.scratch);
  ForAct(act, [&](auto type) {
    using T = typename decltype(type)::type;
    ForVector(args.ld, {args.x}, [&](auto vector) {
      Launch(queue, "ColumnSum", ColumnSumShape(args.N, tiling), &ColumnSumKernel<T, decltype(vector)::value>, args.M,
             args.N, args.ld, tiling.rows_per_tile, static_cast<const T*>(args.x), partials);
    });
  });
  AddPartials(queue, partials, tiling.num_tiles, args.N, args.out);
}

}  // namespace eps::worker::cuda
