#include "gpu_worker/device/cpu/matmul.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace eps::worker::cpu {
namespace {

TEST(MatMulTilingTest, TilesCoverTheOutputOnce) {
  for (const int64_t M : {1, 7, 64, 65, 384, 1000, 4096, 50257}) {
    for (const int64_t N : {1, 47, 48, 384, 385, 1152, 3072, 50257}) {
      const MatMulTiling t = TileMatMul(M, N);
      EXPECT_GE(t.tiles_m * t.tile_m, M);
      EXPECT_LT((t.tiles_m - 1) * t.tile_m, M);
      EXPECT_GE(t.tiles_n * t.tile_n, N);
      EXPECT_LT((t.tiles_n - 1) * t.tile_n, N);
      EXPECT_LE(t.tile_m, 256);
      EXPECT_LE(t.tile_n, 384);
    }
  }
}

TEST(MatMulTilingTest, ShapesOfTrainingShareOutEvenly) {
  for (const int64_t M : {256, 1024, 4096}) {
    for (const int64_t C : {384, 768}) {
      for (const int64_t N : {C, 3 * C, 4 * C}) {
        for (const MatMulTiling& t : {TileMatMul(M, N), TileMatMul(C, N), TileMatMul(N, C)}) {
          EXPECT_TRUE(t.num_tiles() >= 32 || t.num_tiles() % 4 == 0) << M << " " << N << ": " << t.num_tiles();
        }
      }
    }
  }
}

TEST(MatMulTest, TheLibraryIsNamedWithItsVersion) {
  EXPECT_EQ(MatMulLibrary().rfind("onednn-", 0), 0u) << MatMulLibrary();
}

}  // namespace
}  // namespace eps::worker::cpu
