#ifndef EPS_GPU_WORKER_DEVICE_CUDA_TILE_SUMS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_TILE_SUMS_H_

#include <cstdint>

#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/simt.h"

// Sums over the rows of a tile, for each column, by a block whose warps each take every 8th row, a pack of columns a
// lane. AddPartials (reduction.h) adds up what the tiles give.
namespace eps::worker::cuda {

inline constexpr int kTileColumns = kWarpSize * kPack;  // as many as the block's threads

// out[c] = the sum over the warps, in order, of what each has for column c of kTileColumns, for c < end. Every thread
// of the block calls it.
__device__ __forceinline__ void AddWarps(const float (&sum)[kPack], int64_t end, float* out) {
  __shared__ float warp_sums[kTileWarps][kTileColumns];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  __syncthreads();  // the last call's sums have been read
  EPS_UNROLL
  for (int i = 0; i < kPack; ++i) warp_sums[warp][lane * kPack + i] = sum[i];
  __syncthreads();
  if (threadIdx.x >= end) return;
  float total = 0;
  EPS_UNROLL
  for (int i = 0; i < kTileWarps; ++i) total += warp_sums[i][threadIdx.x];
  out[threadIdx.x] = total;
}

// partials (gridDim.y, N): the sums of tile blockIdx.y of M rows, for the kTileColumns columns of blockIdx.x.
// pack_of(row, at, v) sets v to elements [at, at + 8) of a row, 0 from N on.
template <typename PackOf>
__device__ __forceinline__ void SumColumns(int64_t M, int64_t N, int64_t rows_per_tile, float* partials,
                                           const PackOf& pack_of) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileColumns;
  const int64_t begin = blockIdx.y * rows_per_tile, end = begin + rows_per_tile < M ? begin + rows_per_tile : M;
  float sum[kPack] = {};
  for (int64_t row = begin + warp; row < end; row += kTileWarps) {
    float v[kPack];
    pack_of(row, first + lane * kPack, v);
    EPS_UNROLL
    for (int i = 0; i < kPack; ++i) sum[i] += v[i];
  }
  AddWarps(sum, N - first, partials + blockIdx.y * N + first);
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_TILE_SUMS_H_
