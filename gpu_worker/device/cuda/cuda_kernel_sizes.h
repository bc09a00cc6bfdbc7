#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDA_KERNEL_SIZES_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDA_KERNEL_SIZES_H_

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {

// Scratch of the cuda device's kernels, for the planner; see KernelSizes. There in every build.
KernelSizes CudaKernelSizes(Dtype act);

// What a matrix product may work in, outside of the arena: cuBLAS's own recommendation for Hopper.
inline constexpr int64_t kMatMulWorkspaceBytes = int64_t{32} << 20;

// What fused attention may work in, outside of the arena too. Held is what the problems of a run want of it. As many
// sequences at once as fit into the first: 10 of 1024 tokens and 12 heads; one that does not, or several that cannot be cut, may
// have the second: 4096 tokens and 32 heads take 1 GiB, and of 8192 tokens 8 heads at once.
inline constexpr int64_t kAttentionWorkspaceBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxAttentionWorkspaceBytes = int64_t{1088} << 20;

// How positions are sorted by their tokens or experts: in tiles, a digit of the id at a time.
inline constexpr int64_t kSortTile = 1024;
inline constexpr int kSortDigitBits = 8;
inline constexpr uint32_t kSortDigits = 1 << kSortDigitBits;

// KernelSizes::embedding_tile: two types of tokens have some thousand positions each, which one block would walk for
// milliseconds.
inline constexpr int64_t kGatherTile = 64;

// The scratch of the embedding's backward, in elements of 4 bytes from its start: first the sums of later tiles, a row of C for
// each kGatherTile positions.
struct GatherScratch {
  int64_t orders = 0;       // two of (M): positions by token, before and after a pass of the sort
  int64_t tile_counts = 0;  // (kSortDigits, tiles of the sort)
  int64_t positions = 0;    // (M): of each row in its document
};
GatherScratch GatherScratchOf(int64_t M, int64_t C);

// The scratch of Route, in elements of 4 bytes from its start, for R = M * K.
struct RouteScratch {
  int64_t orders = 0;       // two of (R): indices of (M, K) by expert, before and after a pass of the sort
  int64_t tile_counts = 0;  // (kSortDigits, tiles of the sort)
  int64_t weights = 0;      // (M, K): of each token's experts
};
RouteScratch RouteScratchOf(int64_t R);

// How a sum over M rows is cut: a block sums each tile of rows, and the partial sums are added in a fixed order. A
// function of M alone, so the order of the sum is too.
struct RowTiling {
  int64_t rows_per_tile = 0;
  int64_t num_tiles = 0;
};
RowTiling ReductionTiling(int64_t M);
inline constexpr int kTileWarps = 8;  // of a block that sums columns (SumColumns), each with a row at a time

// How it is cut where a pass over rows of C, a norm's backward, makes the sums beside it: a block walks over a tile's
// rows. A block of kWalkThreads has as many rows at once as these hold with a pack of 8 elements each, at most one for
// each warp; a wider row is all that a block has.
inline constexpr int kWalkThreads = 256;
inline constexpr int64_t kMaxNarrowColumns = kWalkThreads * 8;
RowTiling WalkTiling(int64_t rows, int64_t C);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDA_KERNEL_SIZES_H_
