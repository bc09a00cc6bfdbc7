#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"

#include <cstdint>

#include "common/tensor/dtype.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t AttentionBytes(int64_t T, int64_t H, int64_t D, bool drops) {
  return CudaKernelSizes(Dtype::kBf16).outside_bytes(1, T, H, D, drops) - kMatMulWorkspaceBytes;
}

// What cuDNN 9.19 wants for one sequence on sm_90, where keys are shared by 4 heads.
TEST(CudaKernelSizesTest, AttentionsWorkspaceIsNoLessThanTheLibraryWants) {
  EXPECT_GE(AttentionBytes(2048, 32, 128, false), 288 * kMiB);
  EXPECT_GE(AttentionBytes(2048, 32, 128, true), 544 * kMiB);
  EXPECT_GE(AttentionBytes(129, 12, 64, false), 1179904);
}

TEST(CudaKernelSizesTest, AttentionsWorkspaceHasABound) {
  EXPECT_EQ(AttentionBytes(128, 12, 64, true), kAttentionWorkspaceBytes) << "several sequences at once";
  EXPECT_EQ(AttentionBytes(8192, 32, 128, false), kMaxAttentionWorkspaceBytes) << "some heads at once";
  EXPECT_EQ(AttentionBytes(20000, 32, 128, true), kMaxAttentionWorkspaceBytes) << "an evaluation drops nothing";
  EXPECT_EQ(AttentionBytes(30000, 1, 128, false), 0) << "not fused";
  EXPECT_EQ(CudaKernelSizes(Dtype::kF32).outside_bytes(1, 2048, 32, 128, false), kMatMulWorkspaceBytes);
}

TEST(CudaKernelSizesTest, TheEmbeddingsScratchHasASumForEachTileBesideTheSort) {
  const GatherScratch scratch = GatherScratchOf(2 * kGatherTile + 1, 9);
  EXPECT_EQ(scratch.orders, 3 * 9);
  EXPECT_EQ(scratch.tile_counts, 27 + 2 * 129);
  EXPECT_EQ(scratch.positions, 27 + 2 * 129 + 256) << "of one tile of the sort";
  EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).embedding_backward(129, 50000, 9), (scratch.positions + 129) * 4);
  EXPECT_EQ(CudaKernelSizes(Dtype::kBf16).embedding_tile, kGatherTile);
}

}  // namespace
}  // namespace eps::worker::cuda
