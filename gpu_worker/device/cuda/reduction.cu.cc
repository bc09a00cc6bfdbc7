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

// A block adds up 8 columns, 32 bytes of each tile, so that few columns are many blocks. A warp has 4 tiles at once, a
// lane each 64th; then a warp's lanes by halves, then the warps in order.
constexpr int kPartialWarps = 16;
constexpr int kPartialColumns = 8;
constexpr int kPartialTiles = kPartialWarps * kWarpSize / kPartialColumns;

__global__ void __launch_bounds__(kPartialWarps* kWarpSize)
    AddPartialsKernel(const float* partials, int64_t num_tiles, int64_t stride, int64_t N, float* first_out,
                      float* second_out) {
  __shared__ float warp_sums[kPartialWarps][kPartialColumns];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kPartialColumns + lane % kPartialColumns;
  float* out = blockIdx.y == 0 ? first_out : second_out;
  const bool stores = threadIdx.x < kPartialColumns && column < N;
  const float before = stores ? out[column] : 0.0f;  // on its way beside the partial sums
  const float* in = partials + blockIdx.y * N;
  float sum = 0;
  if (column < N) {
    for (int64_t tile = threadIdx.x / kPartialColumns; tile < num_tiles; tile += kPartialTiles) {
      sum += in[tile * stride + column];
    }
  }
  EPS_UNROLL
  for (int distance = kWarpSize / 2; distance >= kPartialColumns; distance /= 2) {
    sum += __shfl_xor_sync(kWarpMask, sum, distance);
  }
  if (lane < kPartialColumns) warp_sums[warp][lane] = sum;
  __syncthreads();
  if (!stores) return;
  float total = 0;
  EPS_UNROLL
  for (int i = 0; i < kPartialWarps; ++i) total += warp_sums[i][lane];
  out[column] = before + total;
}

}  // namespace

void AddPartials(KernelQueue& queue, const float* partials, int64_t num_tiles, int64_t N, float* out,
                 float* second_out) {
  const int64_t outs = second_out == nullptr ? 1 : 2;
  Launch(queue, "AddPartials",
         {.blocks_x = CeilDiv(N, kPartialColumns), .blocks_y = outs, .threads = kPartialWarps * kWarpSize},
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
