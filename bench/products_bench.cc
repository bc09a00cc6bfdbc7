// The peak that a relay's products are measured against: its very products, back to back.
//
//   products_bench THREADS ROUNDS < products.json
//
// products.json: [["NN", M, N, K, calls], ...], calls being a step's. Each by the cpu device's tiles on its pool of threads,
// and by one call of oneDNN for the whole product with threads of its own; the faster of the two is the peak, so that the
// device's way to cut products is measured too. Prints one JSON object: operations of a step, seconds of a step in each
// way, and in the faster of each shape.

#include <dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "bench/support.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "nlohmann/json.hpp"

extern "C" void omp_set_num_threads(int);

namespace eps::worker {
namespace {

struct Product {
  std::string form;
  int64_t M, N, K;
  double calls;
  float *a, *b, *c;
  std::vector<double> by_tiles, by_library;  // seconds

  bool trans_a() const { return form[0] == 'T'; }
  bool trans_b() const { return form[1] == 'T'; }
  double operations() const {
    return 2 * calls * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
  }
};

float* Floats(int64_t n) {
  float* x = reinterpret_cast<float*>(bench::NewMemory(n * 4).data());
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 2654435761u % 1000) * 1e-3f - 0.5f;
  return x;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double ByTiles(Device& device, const Product& p) {
  const auto start = std::chrono::steady_clock::now();
  device.kernels().MatMul({.M = p.M,
                           .N = p.N,
                           .K = p.K,
                           .a = p.a,
                           .lda = p.trans_a() ? p.M : p.K,
                           .trans_a = p.trans_a(),
                           .b = p.b,
                           .ldb = p.trans_b() ? p.K : p.N,
                           .trans_b = p.trans_b(),
                           .c = p.c,
                           .ldc = p.N,
                           .c_is_gradient = p.trans_a(),
                           .accumulate = p.trans_a()});
  EPS_CHECK(device.stream(StreamId::kCompute).Synchronize().ok());
  return SecondsSince(start);
}

double ByLibrary(const Product& p) {
  const auto start = std::chrono::steady_clock::now();
  const dnnl_status_t status = dnnl_sgemm(p.form[0], p.form[1], p.M, p.N, p.K, 1.0f, p.a, p.trans_a() ? p.M : p.K, p.b,
                                          p.trans_b() ? p.K : p.N, p.trans_a() ? 1.0f : 0.0f, p.c, p.N);
  EPS_CHECK(status == dnnl_success);
  return SecondsSince(start);
}

int Run(int threads, int rounds) {
  std::vector<Product> products;
  for (const auto& row : nlohmann::json::parse(std::cin)) {
    products.push_back({row[0], row[1], row[2], row[3], row[4], nullptr, nullptr, nullptr, {}, {}});
    Product& p = products.back();
    p.a = Floats(p.M * p.K), p.b = Floats(p.K * p.N), p.c = Floats(p.M * p.N);
  }
  auto device = NewCpuDevice({.arena_bytes = 0, .threads = threads});
  EPS_CHECK(device.ok());
  omp_set_num_threads(threads);
  for (int round = 0; round <= rounds; ++round) {
    for (Product& p : products) {
      p.by_tiles.push_back(ByTiles(**device, p));
      p.by_library.push_back(ByLibrary(p));
    }
    if (round > 0) continue;
    for (Product& p : products) p.by_tiles.clear(), p.by_library.clear();  // the first: pages, code
  }
  double operations = 0, tiles = 0, library = 0, faster = 0;
  nlohmann::json rows = nlohmann::json::array();
  for (const Product& p : products) {
    const double by_tiles = bench::Median(p.by_tiles), by_library = bench::Median(p.by_library);
    operations += p.operations();
    tiles += p.calls * by_tiles;
    library += p.calls * by_library;
    faster += p.calls * std::min(by_tiles, by_library);
    rows.push_back({{"product", {p.form, p.M, p.N, p.K}}, {"tiles", by_tiles}, {"library", by_library}});
  }
  const nlohmann::json line = {{"operations", operations},
                               {"tiles_seconds", tiles},
                               {"library_seconds", library},
                               {"peak_seconds", faster},
                               {"rows", std::move(rows)}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: products_bench THREADS ROUNDS < products.json\n");
    return 2;
  }
  return eps::worker::Run(std::atoi(argv[1]), std::atoi(argv[2]));
}
