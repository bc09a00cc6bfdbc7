#include "gpu_worker/device/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker::cpu {
namespace {

TEST(MatMulTilingTest, TilesCoverTheOutputOnce) {
  for (const bool copies : {false, true}) {
    for (const int64_t M : {1, 7, 64, 65, 384, 1000, 4096, 50257}) {
      for (const int64_t N : {1, 47, 48, 384, 385, 1152, 3072, 50257}) {
        const MatMulTiling t = TileMatMul(M, N, copies);
        EXPECT_GE(t.tiles_m * t.tile_m, M);
        EXPECT_LT((t.tiles_m - 1) * t.tile_m, M);
        EXPECT_GE(t.tiles_n * t.tile_n, N);
        EXPECT_LT((t.tiles_n - 1) * t.tile_n, N);
        EXPECT_LE(t.tile_m, copies ? 1024 : 256);
        EXPECT_LE(t.tile_n, copies ? 1056 : 384);  // a multiple of 48
      }
    }
  }
}

TEST(MatMulTilingTest, ShapesOfTrainingShareOutEvenly) {
  for (const int64_t M : {256, 1024, 2048, 4096}) {
    for (const int64_t C : {384, 768}) {
      for (const int64_t N : {C, 3 * C, 4 * C}) {
        for (const MatMulTiling& t :
             {TileMatMul(M, N, false), TileMatMul(M, N, true), TileMatMul(C, N, false), TileMatMul(N, C, false)}) {
          EXPECT_TRUE(t.num_tiles() >= 32 || t.num_tiles() % 4 == 0) << M << " " << N << ": " << t.num_tiles();
        }
      }
    }
  }
}

TEST(MatMulTilingTest, TilesAreLargeWhereThatLeavesEnoughOfThem) {
  const MatMulTiling wide = TileMatMul(2048, 1536, true);
  EXPECT_EQ(wide.num_tiles(), 8);
  EXPECT_EQ(wide.tile_m, 1024);
  const MatMulTiling narrow = TileMatMul(2048, 384, true);
  EXPECT_EQ(narrow.num_tiles(), TileMatMul(2048, 384, false).num_tiles());
}

// Rows that clash in a cache are packed on some machines, wherever the operand has them; tiles at the edges are small.
TEST(MatMulTest, EveryFormIsTheProduct) {
  struct Case {
    int64_t M, N, K;
    bool trans_a, trans_b, accumulate;
  };
  std::vector<float> scratch(kTileScratchFloats);
  for (const Case& c : {Case{70, 1024, 300, false, false, false}, Case{1056, 1040, 257, false, false, false},
                        Case{512, 1024, 520, true, false, true}, Case{1024, 96, 513, true, false, false},
                        Case{200, 512, 256, false, true, true}, Case{33, 50, 1024, false, true, false}}) {
    SCOPED_TRACE(absl::StrCat(c.M, " x ", c.N, " x ", c.K, c.trans_a ? " T" : " N", c.trans_b ? "T" : "N"));
    std::vector<float> a(static_cast<size_t>(c.M * c.K)), b(static_cast<size_t>(c.K * c.N));
    std::vector<float> out(static_cast<size_t>(c.M * c.N), 0.5f);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 2654435761u % 1000) * 1e-3f - 0.5f;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 2246822519u % 1000) * 1e-3f - 0.5f;
    const MatMulArgs args = {.M = c.M,
                             .N = c.N,
                             .K = c.K,
                             .a = a.data(),
                             .lda = c.trans_a ? c.M : c.K,
                             .trans_a = c.trans_a,
                             .b = b.data(),
                             .ldb = c.trans_b ? c.K : c.N,
                             .trans_b = c.trans_b,
                             .c = out.data(),
                             .ldc = c.N,
                             .accumulate = c.accumulate};
    const MatMulTiling tiling = TileMatMul(c.M, c.N, CopiesLargeTiles() && !c.trans_a);
    for (int64_t tile = 0; tile < tiling.num_tiles(); ++tile) {
      MatMulTile(args, DropoutPlan{}, tiling, tile, scratch.data());
    }
    double worst = 0;
    for (int64_t i = 0; i < c.M; i += 13) {
      for (int64_t j = 0; j < c.N; ++j) {
        double sum = c.accumulate ? 0.5 : 0;
        for (int64_t k = 0; k < c.K; ++k) {
          sum += double{a[static_cast<size_t>(c.trans_a ? k * c.M + i : i * c.K + k)]} *
                 double{b[static_cast<size_t>(c.trans_b ? j * c.K + k : k * c.N + j)]};
        }
        worst = std::max(worst, std::abs(sum - double{out[static_cast<size_t>(i * c.N + j)]}));
      }
    }
    EXPECT_LT(worst, 1e-4);
  }
}

TEST(MatMulTest, TheLibraryIsNamedWithItsVersion) {
  EXPECT_EQ(MatMulLibrary().rfind("onednn-", 0), 0u) << MatMulLibrary();
}

}  // namespace
}  // namespace eps::worker::cpu
