#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"

#include <algorithm>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {
namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp64(int64_t num_bytes) { return CeilDiv(num_bytes, 64) * 64; }
constexpr int64_t kF32Bytes = 4;

int64_t EmbeddingBackwardBytes(int64_t, int64_t, int64_t) { return 0; }

// (num_tiles, 2, C): each tile's sums for dgamma and dbeta.
int64_t LayerNormBackwardBytes(int64_t M, int64_t C) {
  return RoundUp64(ReductionTiling(M).num_tiles * 2 * C * kF32Bytes);
}

// None, forward and backward: a tile's scores and sums live in the computing thread's own scratch
// (outside_bytes).
int64_t AttentionBytes(int64_t, int64_t, int64_t, int64_t) { return 0; }

// (num_tiles, N): each tile's column sums; of rms norm, its sums for dgamma.
int64_t ColumnSumBytes(int64_t M, int64_t N) { return RoundUp64(ReductionTiling(M).num_tiles * N * kF32Bytes); }

// (M, K): weights by token, before routed rows have their order.
int64_t RouteBytes(int64_t M, int64_t, int64_t K) { return RoundUp64(M * K * kF32Bytes); }

// What oneDNN holds: generated code, and a copy of operands per thread. Measured: 1.14 MiB, NT 512 x 384, any K.
constexpr int64_t kMatMulBytes = int64_t{4} << 20;
constexpr int64_t kMatMulBytesPerThread = int64_t{2} << 20;

int64_t OutsideBytes(const LibraryUse& use) {
  return kMatMulBytes + use.threads * kMatMulBytesPerThread + cpu::TileScratchBytes(use.threads);
}

}  // namespace

RowTiling ReductionTiling(int64_t M) {
  RowTiling tiling;
  tiling.rows_per_tile = std::max(kMinRowsPerTile, CeilDiv(M, kMaxRowTiles));
  tiling.num_tiles = CeilDiv(M, tiling.rows_per_tile);
  return tiling;
}

KernelSizes CpuKernelSizes() {
  KernelSizes sizes;
  sizes.compute_dtype = Dtype::kF32;
  sizes.embedding_backward = &EmbeddingBackwardBytes;
  sizes.layer_norm_backward = &LayerNormBackwardBytes;
  sizes.rms_norm_backward = &ColumnSumBytes;
  sizes.attention = &AttentionBytes;
  sizes.attention_backward = &AttentionBytes;
  sizes.column_sum = &ColumnSumBytes;
  sizes.route = &RouteBytes;
  sizes.outside_bytes = &OutsideBytes;
  return sizes;
}

}  // namespace eps::worker
