#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"

#include <algorithm>
#include <cstdint>

#include "common/base/byte_size.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

constexpr int64_t kF32Bytes = 4;

// A few tiles for each multiprocessor, and partial sums that stay small beside the rows.
constexpr int64_t kMinRowsPerTile = 32;
constexpr int64_t kMaxRowTiles = 256;

// Of tiles that are walked over: as many as an H200's 132 multiprocessors have blocks at once, four of kWalkThreads
// each or two of wider rows, and no more: one that is left over takes as long again. Partial sums, which the same pass
// writes, so stay small beside the rows.
constexpr int64_t kMinRowsPerWalk = 8;
constexpr int64_t kMaxWalks = 4 * 132, kMaxWideWalks = 2 * 132;

// (num_tiles, N): each tile's column sums.
int64_t ColumnSumBytes(int64_t M, int64_t N) { return ReductionTiling(M).num_tiles * N * kF32Bytes; }
// (num_tiles, C): each tile's sums for dgamma.
int64_t RmsNormBackwardBytes(int64_t rows, int64_t C) { return WalkTiling(rows, C).num_tiles * C * kF32Bytes; }
// And for dbeta.
int64_t LayerNormBackwardBytes(int64_t M, int64_t C) { return 2 * RmsNormBackwardBytes(M, C); }
int64_t AttentionBytes(int64_t, int64_t, int64_t, int64_t) { return 0; }
// A number for each row of the probabilities; the plain kernel's and fused attention's.
int64_t AttentionBackwardBytes(int64_t B, int64_t T, int64_t H, int64_t) { return B * H * T * kF32Bytes; }

int64_t EmbeddingBackwardBytes(int64_t M, int64_t, int64_t C) {
  const GatherScratch scratch = GatherScratchOf(M, C);
  return (scratch.positions + M) * int64_t{sizeof(uint32_t)};
}

int64_t RouteBytes(int64_t M, int64_t, int64_t K) { return (RouteScratchOf(M * K).weights + M * K) * kF32Bytes; }

int64_t OutsideBytes(const LibraryUse&) { return kMatMulWorkspaceBytes; }
// At most: the plan does not know which attention it will be, nor how many heads share keys and values and stay together. A
// sequence is (H, T, T) numbers of 16 bits, T as long as whole tiles, the gradients of each head's keys and values, and
// something beside; with dropout as many factors, and with documents the bias of one head. What is not fused with it may be without, in an evaluation. Several
// sequences that are too many are cut, unless no part of them is aligned (CutSmaller).
int64_t OutsideBytesWithFusedAttention(const LibraryUse& use) {
  const auto& [threads, B, T, H, D, has_documents, drops] = use;
  constexpr int64_t kRows = 64, kColumns = 128, kBeside = int64_t{16} << 20;
  const int64_t probability_bytes = RoundUp(T, kRows) * RoundUp(T, kColumns) * 2;
  if (probability_bytes + kBeside > kMaxAttentionWorkspaceBytes) return kMatMulWorkspaceBytes;  // it is not fused
  const int64_t head_bytes = probability_bytes * (drops ? 2 : 1) + 2 * T * D * 2;
  const bool can_be_cut = B == 1 || H * T % 4 == 0;
  const int64_t at_once = can_be_cut ? 1 : B;
  const int64_t bias_bytes = has_documents ? at_once * probability_bytes : 0;
  const int64_t most_bytes = std::min(at_once * H * head_bytes + bias_bytes + kBeside, kMaxAttentionWorkspaceBytes);
  return kMatMulWorkspaceBytes + std::max(kAttentionWorkspaceBytes, most_bytes);
}

RowTiling CutRows(int64_t rows, int64_t min_rows_per_tile, int64_t max_tiles) {
  RowTiling tiling;
  tiling.rows_per_tile = std::max(min_rows_per_tile, (rows + max_tiles - 1) / max_tiles);
  tiling.num_tiles = (rows + tiling.rows_per_tile - 1) / tiling.rows_per_tile;
  return tiling;
}

}  // namespace

RowTiling ReductionTiling(int64_t M) { return CutRows(M, kMinRowsPerTile, kMaxRowTiles); }

RowTiling WalkTiling(int64_t rows, int64_t C) {
  return CutRows(rows, kMinRowsPerWalk, C <= kMaxNarrowColumns ? kMaxWalks : kMaxWideWalks);
}

GatherScratch GatherScratchOf(int64_t M, int64_t C) {
  GatherScratch scratch;
  scratch.orders = (M + kGatherTile - 1) / kGatherTile * C;
  scratch.tile_counts = scratch.orders + 2 * M;
  scratch.positions = scratch.tile_counts + (M + kSortTile - 1) / kSortTile * kSortDigits;
  return scratch;
}

RouteScratch RouteScratchOf(int64_t R) {
  RouteScratch scratch;
  scratch.tile_counts = scratch.orders + 2 * R;
  scratch.weights = scratch.tile_counts + (R + kSortTile - 1) / kSortTile * kSortDigits;
  return scratch;
}

KernelSizes CudaKernelSizes(Dtype act) {
  KernelSizes sizes;
  sizes.compute_dtype = act;
  sizes.embedding_backward = &EmbeddingBackwardBytes;
  sizes.layer_norm_backward = &LayerNormBackwardBytes;
  sizes.rms_norm_backward = &RmsNormBackwardBytes;
  sizes.attention = &AttentionBytes;
  sizes.attention_backward = &AttentionBackwardBytes;
  sizes.column_sum = &ColumnSumBytes;
  sizes.route = &RouteBytes;
  sizes.embedding_tile = kGatherTile;
  sizes.pins_host_memory = true;
  sizes.outside_bytes = SizeOf(act) == 2 ? &OutsideBytesWithFusedAttention : &OutsideBytes;
  return sizes;
}

}  // namespace eps::worker::cuda
