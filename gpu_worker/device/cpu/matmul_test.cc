#include "gpu_worker/device/cpu/matmul.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/thread_pool.h"
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
      EXPECT_LE(t.tile_m, kMatMulTileRows);
      EXPECT_LE(t.tile_n, kMatMulTileColumns);
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

struct Shape {
  int64_t M, N, K;
  MatMulTiling tiling;
};

// Tiles that are as large as they become, and cut short; K in one piece and in several; rows of b that clash in a cache
// (a multiple of 512 floats), also where oneDNN copies them itself, and rows that do not. Against sums in double precision.
TEST(MatMulTest, EveryFormIsRight) {
  std::vector<float> scratch(kTileScratchFloats, std::numeric_limits<float>::quiet_NaN());
  const std::vector<Shape> shapes = {
      {70, 512, 33, TileMatMul(70, 512)},
      {70, 500, 33, TileMatMul(70, 500)},
      {512, 512, 300, {.tile_m = 512, .tile_n = 384, .tiles_m = 1, .tiles_n = 2}},
      {300, 512, 801, {.tile_m = 256, .tile_n = 384, .tiles_m = 2, .tiles_n = 2}},
      {300, 500, 801, {.tile_m = 256, .tile_n = 384, .tiles_m = 2, .tiles_n = 2}},
      {300, 1024, 600, {.tile_m = 300, .tile_n = 384, .tiles_m = 1, .tiles_n = 3}},
  };
  for (const Shape& s : shapes) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const int64_t a_columns = trans_a ? s.M : s.K, b_columns = trans_b ? s.K : s.N;
          const int64_t lda = a_columns, ldb = b_columns;
          const auto a_at = [&](int64_t i, int64_t k) { return trans_a ? k * lda + i : i * lda + k; };
          const auto b_at = [&](int64_t k, int64_t j) { return trans_b ? j * ldb + k : k * ldb + j; };
          std::vector<float> a(static_cast<size_t>((trans_a ? s.K : s.M) * lda));
          std::vector<float> b(static_cast<size_t>((trans_b ? s.N : s.K) * ldb));
          for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 101) * 0.01f - 0.5f;
          for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 53 % 97) * 0.01f - 0.5f;
          // NaN where nothing is added: what was there does not count.
          std::vector<float> c(static_cast<size_t>(s.M * s.N),
                               accumulate ? 2.0f : std::numeric_limits<float>::quiet_NaN());
          const MatMulArgs args = {.M = s.M,
                                   .N = s.N,
                                   .K = s.K,
                                   .a = a.data(),
                                   .lda = lda,
                                   .trans_a = trans_a,
                                   .b = b.data(),
                                   .ldb = ldb,
                                   .trans_b = trans_b,
                                   .c = c.data(),
                                   .ldc = s.N,
                                   .accumulate = accumulate};
          for (int64_t tile = 0; tile < s.tiling.num_tiles(); ++tile) {
            MatMulTile(args, {}, s.tiling, tile, scratch.data());
          }
          const int64_t stride = s.K > 100 ? 7 : 1;  // of the elements that are looked at
          for (int64_t i = 0; i < s.M; i += stride) {
            for (int64_t j = 0; j < s.N; j += stride) {
              double sum = accumulate ? 2 : 0;
              for (int64_t k = 0; k < s.K; ++k) {
                sum += double{a[static_cast<size_t>(a_at(i, k))]} * double{b[static_cast<size_t>(b_at(k, j))]};
              }
              ASSERT_NEAR(c[static_cast<size_t>(i * s.N + j)], sum,
                          1e-6 * static_cast<double>(s.K))  // products are below 0.25
                  << s.N << (trans_a ? " T" : " N") << (trans_b ? "T " : "N ") << accumulate << " " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

// A library that shares a buffer between its callers is wrong now and then.
TEST(MatMulTest, ManyThreadsAtOnceGetTheSameBits) {
  constexpr int64_t M = 64, N = 48, K = 24;
  for (const bool trans_a : {false, true}) {
    const int64_t lda = trans_a ? M : K;
    std::vector<float> a(static_cast<size_t>(M * K)), b(static_cast<size_t>(K * N));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 101) * 0.01f - 0.5f;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 53 % 97) * 0.01f - 0.5f;
    const auto multiply = [&] {
      static thread_local std::vector<float> scratch(kTileScratchFloats);
      std::vector<float> c(static_cast<size_t>(M * N));
      const MatMulTiling whole = {.tile_m = M, .tile_n = N, .tiles_m = 1, .tiles_n = 1};
      MatMulTile({.M = M,
                  .N = N,
                  .K = K,
                  .a = a.data(),
                  .lda = lda,
                  .trans_a = trans_a,
                  .b = b.data(),
                  .ldb = N,
                  .c = c.data(),
                  .ldc = N},
                 {}, whole, 0, scratch.data());
      return c;
    };
    const std::vector<float> want = multiply();
    std::atomic<int> different = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int call = 0; call < 3000; ++call) different += multiply() == want ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(different, 0) << (trans_a ? "TN" : "NN");
  }
}

TEST(MatMulTest, TheLibraryIsNamedWithItsVersion) {
  EXPECT_THAT(MatMulLibrary(), ::testing::MatchesRegex("onednn-[0-9.]+-[a-z0-9_]+"));
}

}  // namespace
}  // namespace eps::worker::cpu
