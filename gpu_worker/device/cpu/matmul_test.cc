#include "gpu_worker/device/cpu/matmul.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
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

// Rows that clash in a cache (512 floats), which without AVX-512 are the other library's, and rows that do not; against
// sums in double precision.
TEST(MatMulTest, EveryFormIsRight) {
  constexpr int64_t M = 70, K = 33;
  for (const int64_t N : {512, 500}) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const int64_t lda = trans_a ? N : K, ldb = trans_b ? K : N;
          const auto a_at = [&](int64_t i, int64_t k) { return trans_a ? k * lda + i : i * lda + k; };
          const auto b_at = [&](int64_t k, int64_t j) { return trans_b ? j * ldb + k : k * ldb + j; };
          std::vector<float> a(static_cast<size_t>(trans_a ? K * lda : M * lda));
          std::vector<float> b(static_cast<size_t>(trans_b ? N * ldb : K * ldb));
          for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 101) * 0.01f - 0.5f;
          for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 53 % 97) * 0.01f - 0.5f;
          // NaN where nothing is added: what was there does not count.
          std::vector<float> c(static_cast<size_t>(M * N), accumulate ? 2.0f : std::numeric_limits<float>::quiet_NaN());
          const MatMulArgs args = {.M = M,
                                   .N = N,
                                   .K = K,
                                   .a = a.data(),
                                   .lda = lda,
                                   .trans_a = trans_a,
                                   .b = b.data(),
                                   .ldb = ldb,
                                   .trans_b = trans_b,
                                   .c = c.data(),
                                   .ldc = N,
                                   .accumulate = accumulate};
          const MatMulTiling tiling = TileMatMul(M, N);
          for (int64_t tile = 0; tile < tiling.num_tiles(); ++tile) MatMulTile(args, {}, tiling, tile, nullptr);
          for (int64_t i = 0; i < M; ++i) {
            for (int64_t j = 0; j < N; ++j) {
              double sum = accumulate ? 2 : 0;
              for (int64_t k = 0; k < K; ++k) {
                sum += double{a[static_cast<size_t>(a_at(i, k))]} * double{b[static_cast<size_t>(b_at(k, j))]};
              }
              ASSERT_NEAR(c[static_cast<size_t>(i * N + j)], sum, 1e-5)
                  << N << (trans_a ? " T" : " N") << (trans_b ? "T " : "N ") << accumulate << " " << i << ", " << j;
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
  for (const int64_t lda : {512, 500}) {  // without AVX-512 one for each library
    std::vector<float> a(static_cast<size_t>(K * lda)), b(static_cast<size_t>(K * N));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 101) * 0.01f - 0.5f;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 53 % 97) * 0.01f - 0.5f;
    const auto multiply = [&] {
      std::vector<float> c(static_cast<size_t>(M * N));
      const MatMulTiling whole = {.tile_m = M, .tile_n = N, .tiles_m = 1, .tiles_n = 1};
      MatMulTile({.M = M,
                  .N = N,
                  .K = K,
                  .a = a.data(),
                  .lda = lda,
                  .trans_a = true,
                  .b = b.data(),
                  .ldb = N,
                  .c = c.data(),
                  .ldc = N},
                 {}, whole, 0, nullptr);
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
    EXPECT_EQ(different, 0) << "rows " << lda << " apart";
  }
}

TEST(MatMulTest, TheLibrariesAreNamedWithTheirVersions) {
  EXPECT_THAT(MatMulLibrary(), ::testing::MatchesRegex("onednn-[0-9.]+-[a-z0-9_]+ openblas-[0-9.]+-[A-Za-z0-9]+"));
}

}  // namespace
}  // namespace eps::worker::cpu
