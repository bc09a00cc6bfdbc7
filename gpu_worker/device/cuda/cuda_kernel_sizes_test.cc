#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t AttentionBytes(int64_t T, int64_t H, int64_t D, bool drops, int64_t B = 1, bool has_documents = false) {
  return CudaKernelSizes(Dtype::kBf16)
             .outside_bytes({.B = B, .T = T, .H = H, .D = D, .has_documents = has_documents, .drops = drops}) -
         kMatMulWorkspaceBytes;
}

// What cuDNN 9.19 wants for one sequence on sm_90, where keys are shared by 4 heads.
TEST(CudaKernelSizesTest, AttentionsWorkspaceIsNoLessThanTheLibraryWants) {
  EXPECT_GE(AttentionBytes(2048, 32, 128, false), 288 * kMiB);
  EXPECT_GE(AttentionBytes(2048, 32, 128, true), 544 * kMiB);
  EXPECT_GE(AttentionBytes(129, 12, 64, false), 1179904);
  EXPECT_GE(AttentionBytes(4096, 8, 128, false, 1, true), 256 * kMiB + 32 * kMiB) << "documents' bias of a head beside";
}

TEST(CudaKernelSizesTest, AttentionsWorkspaceHasABound) {
  EXPECT_EQ(AttentionBytes(128, 12, 64, true), kAttentionWorkspaceBytes) << "several sequences at once";
  EXPECT_EQ(AttentionBytes(8192, 32, 128, false), kMaxAttentionWorkspaceBytes) << "some heads at once";
  EXPECT_EQ(AttentionBytes(1022, 12, 64, false, 64), kAttentionWorkspaceBytes) << "sequences that can be cut";
  EXPECT_EQ(AttentionBytes(1022, 12, 64, false, 64, true), kAttentionWorkspaceBytes) << "of documents, too";
  EXPECT_EQ(AttentionBytes(1021, 11, 64, false, 64), kMaxAttentionWorkspaceBytes) << "that cannot";
  EXPECT_EQ(AttentionBytes(1021, 11, 64, false, 1), kAttentionWorkspaceBytes) << "one alone";
  EXPECT_EQ(AttentionBytes(1021, 11, 64, false, 2), kAttentionWorkspaceBytes) << "that fit";
  EXPECT_EQ(AttentionBytes(20000, 32, 128, true), kMaxAttentionWorkspaceBytes) << "an evaluation drops nothing";
  EXPECT_EQ(AttentionBytes(30000, 1, 128, false), 0) << "not fused";
  EXPECT_EQ(CudaKernelSizes(Dtype::kF32).outside_bytes({.B = 1, .T = 2048, .H = 32, .D = 128}), kMatMulWorkspaceBytes);
}

TEST(CudaKernelSizesTest, TheEmbeddingsScratchHasASumForEachTileBesideTheSort) {
  const GatherScratch scratch = GatherScratchOf(2 * kGatherTile + 1, 9);
  EXPECT_EQ(scratch.orders, 3 * 9);
  EXPECT_EQ(scratch.tile_counts, 27 + 2 * 129);
  EXPECT_EQ(scratch.positions, 27 + 2 * 129 + 256) << "of one tile of the sort";
  EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).embedding_backward(129, 50000, 9), (scratch.positions + 129) * 4);
  EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).embedding_tile, kGatherTile);
}

TEST(CudaKernelSizesTest, ARoutesScratchHasTheSortAndAWeightForEachRoutedRow) {
  const RouteScratch scratch = RouteScratchOf(3 * 343);
  EXPECT_EQ(scratch.orders, 0);
  EXPECT_EQ(scratch.tile_counts, 2 * 1029);
  EXPECT_EQ(scratch.weights, 2 * 1029 + 2 * 256) << "of two tiles of the sort";
  EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).route(343, 60, 3), (scratch.weights + 1029) * 4);
}

TEST(CudaKernelSizesTest, WalksTakeAllRowsAndAreNoMoreThanSumUpFast) {
  for (const int64_t rows : {1, 7, 8, 9, 255, 2048, 4097, 8192, 100003}) {
    for (const int64_t C : {1, 64, 256, 768, 1024, 1032, 2048, 4096, 16384, 65536}) {
      const RowTiling tiling = WalkTiling(rows, C);
      EXPECT_GE(tiling.rows_per_tile, 8);
      EXPECT_LE(tiling.num_tiles, C <= kMaxNarrowColumns ? 528 : 264) << C;
      EXPECT_GE(tiling.num_tiles * tiling.rows_per_tile, rows);
      EXPECT_LT((tiling.num_tiles - 1) * tiling.rows_per_tile, rows) << "a tile without rows";
      EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).layer_norm_backward(rows, C), tiling.num_tiles * 2 * C * 4);
      EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).rms_norm_backward(rows, C), tiling.num_tiles * C * 4);
    }
  }
}

// Queries and keys have one scratch, of the size that queries need: several times the keys' rows.
TEST(CudaKernelSizesTest, SeveralTimesTheRowsNeedNoLessScratch) {
  const KernelSizes sizes = CudaKernelSizes(Dtype::kBf16);
  for (int64_t rows = 1; rows < 20000; rows += 37) {
    for (const int64_t times : {1, 2, 3, 8}) {
      EXPECT_GE(sizes.rms_norm_backward(times * rows, 128), sizes.rms_norm_backward(rows, 128))
          << rows << " x " << times;
    }
  }
}

}  // namespace
}  // namespace eps::worker::cuda
