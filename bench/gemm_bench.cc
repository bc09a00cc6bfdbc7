// Which library computes the cpu device's matrix products: OpenBLAS against oneDNN, at the shapes
// of GPT-2's training, cut in the device's tiles (gpu_worker/device/cpu/matmul.h), each tile one
// single-threaded call from a thread of ours. The two in turn (A B A B), medians. The outcome
// stands in matmul.h.
//
//   gemm_bench [largest M]     4096 by default

#include <cblas.h>
#include <dnnl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "gpu_worker/device/cpu/matmul.h"
#include "nlohmann/json.hpp"

extern "C" void omp_set_num_threads(int);

namespace eps::worker::cpu {
namespace {

struct Problem {
  const char* form;  // "NN" forward, "NT" gradient of the input, "TN" gradient of the weight, added to
  int64_t M, N, K;
  bool trans_a() const { return form[0] == 'T'; }
  bool trans_b() const { return form[1] == 'T'; }
  double flops() const { return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K); }
};

struct Operands {
  std::vector<float> a, b, c;
};

struct Tile {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
};

using TileFn = void (*)(const Problem&, const Tile&);

void OpenBlasTile(const Problem& p, const Tile& t) {
  cblas_sgemm(CblasRowMajor, p.trans_a() ? CblasTrans : CblasNoTrans, p.trans_b() ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(t.m), static_cast<blasint>(t.n), static_cast<blasint>(t.k), 1.0f, t.a,
              static_cast<blasint>(t.lda), t.b, static_cast<blasint>(t.ldb), p.trans_a() ? 1.0f : 0.0f, t.c,
              static_cast<blasint>(t.ldc));
}

void OneDnnTile(const Problem& p, const Tile& t) {
  dnnl_sgemm(p.form[0], p.form[1], t.m, t.n, t.k, 1.0f, t.a, t.lda, t.b, t.ldb, p.trans_a() ? 1.0f : 0.0f, t.c, t.ldc);
}

void Multiply(const Problem& p, Operands& x, int threads, TileFn tile_fn) {
  const MatMulTiling tiling = TileMatMul(p.M, p.N);
  const int64_t lda = p.trans_a() ? p.M : p.K, ldb = p.trans_b() ? p.K : p.N;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    omp_set_num_threads(1);
    for (int64_t tile = next++; tile < tiling.num_tiles(); tile = next++) {
      const int64_t i = tile / tiling.tiles_n * tiling.tile_m, j = tile % tiling.tiles_n * tiling.tile_n;
      tile_fn(p, {.m = std::min(tiling.tile_m, p.M - i),
                  .n = std::min(tiling.tile_n, p.N - j),
                  .k = p.K,
                  .a = x.a.data() + (p.trans_a() ? i : i * lda),
                  .lda = lda,
                  .b = x.b.data() + (p.trans_b() ? j * ldb : j),
                  .ldb = ldb,
                  .c = x.c.data() + i * p.N + j,
                  .ldc = p.N});
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

double Seconds(const Problem& p, Operands& x, int threads, TileFn tile_fn) {
  const auto start = std::chrono::steady_clock::now();
  Multiply(p, x, threads, tile_fn);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Whether a library gives the same bits when one thread computes all tiles, and when two share
// them.
bool SameBits(const Problem& p, Operands& x, TileFn tile_fn) {
  std::fill(x.c.begin(), x.c.end(), 0.0f);
  Multiply(p, x, 1, tile_fn);
  const std::vector<float> one = x.c;
  std::fill(x.c.begin(), x.c.end(), 0.0f);
  Multiply(p, x, 2, tile_fn);
  return std::memcmp(one.data(), x.c.data(), one.size() * sizeof(float)) == 0;
}

std::vector<Problem> Problems(int64_t largest_m) {
  std::vector<Problem> problems;
  for (const int64_t C : {384, 768}) {
    for (const int64_t M : {256, 512, 1024, 4096}) {
      if (M > largest_m) continue;
      for (const auto& [N, K] : {std::pair<int64_t, int64_t>{3 * C, C}, {C, C}, {4 * C, C}, {C, 4 * C}}) {
        problems.push_back({"NN", M, N, K});
        problems.push_back({"NT", M, K, N});
        problems.push_back({"TN", K, N, M});
      }
    }
  }
  return problems;
}

int Run(int64_t largest_m) {
  constexpr int kRounds = 5;
  openblas_set_num_threads(1);
  std::printf("OpenBLAS: %s, core %s\noneDNN: %s\n", openblas_get_config(), openblas_get_corename(),
              MatMulLibrary().c_str());
  std::printf("%-4s %6s %6s %6s | %20s | %20s | GFLOP/s, 1 and 2 threads\n", "form", "M", "N", "K",
              "OpenBLAS 1T, oneDNN", "OpenBLAS 2T, oneDNN");
  nlohmann::json rows = nlohmann::json::array();
  double log_ratio[2] = {0, 0};
  bool same_bits[2] = {true, true};
  const std::vector<Problem> problems = Problems(largest_m);
  for (const Problem& p : problems) {
    Operands x{std::vector<float>(p.M * p.K), std::vector<float>(p.K * p.N), std::vector<float>(p.M * p.N)};
    for (size_t i = 0; i < x.a.size(); ++i) x.a[i] = static_cast<float>(i * 2654435761u % 1000) * 1e-3f - 0.5f;
    for (size_t i = 0; i < x.b.size(); ++i) x.b[i] = static_cast<float>(i * 2246822519u % 1000) * 1e-3f - 0.5f;
    same_bits[0] = SameBits(p, x, OpenBlasTile) && same_bits[0];
    same_bits[1] = SameBits(p, x, OneDnnTile) && same_bits[1];
    double rate[2][2];
    for (int threads = 1; threads <= 2; ++threads) {
      std::vector<double> seconds[2];
      for (int round = 0; round < kRounds; ++round) {
        seconds[0].push_back(Seconds(p, x, threads, OpenBlasTile));
        seconds[1].push_back(Seconds(p, x, threads, OneDnnTile));
      }
      for (int side = 0; side < 2; ++side) rate[threads - 1][side] = p.flops() / bench::Median(seconds[side]) * 1e-9;
      log_ratio[threads - 1] += std::log(rate[threads - 1][1] / rate[threads - 1][0]);
    }
    std::printf("%-4s %6ld %6ld %6ld | %9.1f %10.1f | %9.1f %10.1f\n", p.form, static_cast<long>(p.M),
                static_cast<long>(p.N), static_cast<long>(p.K), rate[0][0], rate[0][1], rate[1][0], rate[1][1]);
    rows.push_back({{"form", p.form},
                    {"M", p.M},
                    {"N", p.N},
                    {"K", p.K},
                    {"openblas_gflops", {rate[0][0], rate[1][0]}},
                    {"onednn_gflops", {rate[0][1], rate[1][1]}}});
  }
  const double count = static_cast<double>(problems.size());
  const double ratio[2] = {std::exp(log_ratio[0] / count), std::exp(log_ratio[1] / count)};
  std::printf("oneDNN over OpenBLAS, geometric mean: %.3f with 1 thread, %.3f with 2\n", ratio[0], ratio[1]);
  std::printf("same bits whoever computes a tile: OpenBLAS %s, oneDNN %s\n", same_bits[0] ? "yes" : "NO",
              same_bits[1] ? "yes" : "NO");
  const nlohmann::json line = {{"name", "gemm"},
                               {"onednn_over_openblas", {{"1", ratio[0]}, {"2", ratio[1]}}},
                               {"same_bits", {{"openblas", same_bits[0]}, {"onednn", same_bits[1]}}},
                               {"rows", rows}};
  std::printf("%s\n", line.dump().c_str());
  return same_bits[1] ? 0 : 1;
}

}  // namespace
}  // namespace eps::worker::cpu

int main(int argc, char** argv) { return eps::worker::cpu::Run(argc > 1 ? std::atoll(argv[1]) : 4096); }
