// The peak that a relay's products are measured against: its very products, back to back.
//
//   products_bench tiles|library THREADS ROUNDS < products.json
//
// products.json: [["NN", M, N, K], ...]. Each by the cpu device's tiles on its pool of threads, or by one call of oneDNN for
// the whole product with threads of its own. The faster of the two ways is the peak, so that the device's way to cut
// products is measured too; each in a process of its own, as either's threads go on spinning for a while after their work and
// would take the cores from the other's. Prints a JSON array of the median seconds of each.

#include <dnnl.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "common/base/median.h"
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
  float *a, *b, *c;
  std::vector<double> seconds;

  bool trans_a() const { return form[0] == 'T'; }
  bool trans_b() const { return form[1] == 'T'; }
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

int Run(bool by_tiles, int threads, int rounds) {
  std::vector<Product> products;
  for (const auto& row : nlohmann::json::parse(std::cin)) {
    products.push_back({row[0], row[1], row[2], row[3], nullptr, nullptr, nullptr, {}});
    Product& p = products.back();
    p.a = Floats(p.M * p.K), p.b = Floats(p.K * p.N), p.c = Floats(p.M * p.N);
  }
  std::unique_ptr<Device> device;
  if (by_tiles) {
    auto made = NewCpuDevice({.arena_bytes = 0, .threads = threads});
    EPS_CHECK(made.ok());
    device = *std::move(made);
  } else {
    omp_set_num_threads(threads);
  }
  for (int round = 0; round <= rounds; ++round) {
    for (Product& p : products) {
      const double seconds = by_tiles ? ByTiles(*device, p) : ByLibrary(p);
      if (round > 0) p.seconds.push_back(seconds);  // the first: pages, code
    }
  }
  nlohmann::json medians = nlohmann::json::array();
  for (const Product& p : products) medians.push_back(Median(p.seconds));
  std::printf("%s\n", medians.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) {
  const std::string way = argc == 4 ? argv[1] : "";
  if (way != "tiles" && way != "library") {
    std::fprintf(stderr, "usage: products_bench tiles|library THREADS ROUNDS < products.json\n");
    return 2;
  }
  const int threads = std::atoi(argv[2]), rounds = std::atoi(argv[3]);
  if (threads < 1 || rounds < 1) {
    std::fprintf(stderr, "products_bench: THREADS and ROUNDS are 1 or more\n");
    return 2;
  }
  return eps::worker::Run(way == "tiles", threads, rounds);
}
