// What copying operands brings the cpu device's matrix products (gpu_worker/device/cpu/matmul.h): its tiles, against the
// same tiles as one call of oneDNN each that reads its operands in place, at the shapes of GPT-2's training, each tile by a
// thread of ours. The two in turn (A B A B), medians. What was seen stands in docs/decisions/0004-tiles-by-shape.md.
//
//   gemm_bench [largest M]     4096 by default

#include <dnnl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/matmul.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/kernels.h"
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

// In huge pages, as the device's arena is.
float* Floats(int64_t n) { return reinterpret_cast<float*>(bench::NewMemory(n * int64_t{sizeof(float)}).data()); }

struct Operands {
  float *a, *b, *c;
};

MatMulArgs ArgsOf(const Problem& p, const Operands& x) {
  return {.M = p.M,
          .N = p.N,
          .K = p.K,
          .a = x.a,
          .lda = p.trans_a() ? p.M : p.K,
          .trans_a = p.trans_a(),
          .b = x.b,
          .ldb = p.trans_b() ? p.K : p.N,
          .trans_b = p.trans_b(),
          .c = x.c,
          .ldc = p.N,
          .c_is_gradient = p.trans_a(),
          .accumulate = p.trans_a()};
}

using TileFn = void (*)(const MatMulArgs&, const MatMulTiling&, int64_t tile, float* scratch);

void TileInPlace(const MatMulArgs& args, const MatMulTiling& tiling, int64_t tile, float*) {
  const int64_t i = tile / tiling.tiles_n * tiling.tile_m, j = tile % tiling.tiles_n * tiling.tile_n;
  const float* a = static_cast<const float*>(args.a) + (args.trans_a ? i : i * args.lda);
  const float* b = static_cast<const float*>(args.b) + (args.trans_b ? j * args.ldb : j);
  omp_set_num_threads(1);
  const dnnl_status_t status =
      dnnl_sgemm(args.trans_a ? 'T' : 'N', args.trans_b ? 'T' : 'N', std::min(tiling.tile_m, args.M - i),
                 std::min(tiling.tile_n, args.N - j), args.K, 1.0f, a, args.lda, b, args.ldb,
                 args.accumulate ? 1.0f : 0.0f, static_cast<float*>(args.c) + i * args.ldc + j, args.ldc);
  EPS_CHECK(status == dnnl_success);
}

void DeviceTile(const MatMulArgs& args, const MatMulTiling& tiling, int64_t tile, float* scratch) {
  MatMulTile(args, {}, tiling, tile, scratch);
}

void Multiply(const Problem& p, const Operands& x, int threads, TileFn tile_fn) {
  const MatMulTiling tiling = TileMatMul(p.M, p.N);
  const MatMulArgs args = ArgsOf(p, x);
  static float* const scratch = Floats(2 * kTileScratchFloats);
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread) {
    for (int64_t tile = next++; tile < tiling.num_tiles(); tile = next++) {
      tile_fn(args, tiling, tile, scratch + thread * kTileScratchFloats);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work, i);
  work(0);
  for (std::thread& helper : helpers) helper.join();
}

double Seconds(const Problem& p, const Operands& x, int threads, TileFn tile_fn) {
  const auto start = std::chrono::steady_clock::now();
  Multiply(p, x, threads, tile_fn);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  std::printf("%s\n%-4s %6s %6s %6s | %21s | %21s | GFLOP/s\n", MatMulLibrary().c_str(), "form", "M", "N", "K",
              "1 thread: in place, ours", "2: in place, ours");
  nlohmann::json rows = nlohmann::json::array();
  double log_ratio[2] = {0, 0};
  const std::vector<Problem> problems = Problems(largest_m);
  int64_t most = 0;
  for (const Problem& p : problems) most = std::max({most, p.M * p.K, p.K * p.N, p.M * p.N});
  const Operands x = {Floats(most), Floats(most), Floats(most)};
  for (int64_t i = 0; i < most; ++i) {
    x.a[i] = static_cast<float>(i * 2654435761u % 1000) * 1e-3f - 0.5f;
    x.b[i] = static_cast<float>(i * 2246822519u % 1000) * 1e-3f - 0.5f;
  }
  for (const Problem& p : problems) {
    std::fill(x.c, x.c + p.M * p.N, 0.0f);
    double rate[2][2];
    for (int threads = 1; threads <= 2; ++threads) {
      std::vector<double> seconds[2];
      for (int round = 0; round <= kRounds; ++round) {
        const double in_place = Seconds(p, x, threads, TileInPlace), ours = Seconds(p, x, threads, DeviceTile);
        if (round > 0) seconds[0].push_back(in_place), seconds[1].push_back(ours);  // the first: pages, code
      }
      for (int side = 0; side < 2; ++side) rate[threads - 1][side] = p.flops() / Median(seconds[side]) * 1e-9;
      log_ratio[threads - 1] += std::log(rate[threads - 1][1] / rate[threads - 1][0]);
    }
    std::printf("%-4s %6ld %6ld %6ld | %12.1f %11.1f | %9.1f %11.1f\n", p.form, static_cast<long>(p.M),
                static_cast<long>(p.N), static_cast<long>(p.K), rate[0][0], rate[0][1], rate[1][0], rate[1][1]);
    rows.push_back({{"form", p.form},
                    {"M", p.M},
                    {"N", p.N},
                    {"K", p.K},
                    {"in_place_gflops", {rate[0][0], rate[1][0]}},
                    {"gflops", {rate[0][1], rate[1][1]}}});
  }
  const double count = static_cast<double>(problems.size());
  const double ratio[2] = {std::exp(log_ratio[0] / count), std::exp(log_ratio[1] / count)};
  std::printf("ours over in place, geometric mean: %.3f with 1 thread, %.3f with 2\n", ratio[0], ratio[1]);
  const nlohmann::json line = {{"name", "gemm"}, {"over_in_place", {{"1", ratio[0]}, {"2", ratio[1]}}}, {"rows", rows}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::worker::cpu

int main(int argc, char** argv) { return eps::worker::cpu::Run(argc > 1 ? std::atoll(argv[1]) : 4096); }
