// The fused AdamW update of one step (sum of two 16-bit contributions, norm, update, next 16-bit
// wire form) against a plain loop that reads and writes the same bytes and computes nothing
// (prefetching made it slower, so it has none). The two sides run in turn, A B A B, on the same
// memory, in one process; the ratio of their medians is what matters, absolute figures drift with
// the machine.
//
//   bytes per parameter: reads 2 (wire) + 2 (rest) + 8 (moments) + 4 (contributions), writes 2 + 2
//   + 8

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/types/span.h"
#include "bench/support.h"
#include "common/base/ids.h"
#include "common/base/median.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/float_mode.h"
#include "eps_server/store/store.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr double kBytesPerParameter = 28;

struct Settings {
  int64_t millions = 300;  // parameters
  int threads = 2;
  int repeats = 7;
};

// One blob of so many whole chunks, and two 16-bit leaves of its gradient.
class Work {
 public:
  explicit Work(int64_t num_chunks) : num_chunks_(num_chunks) {
    BlobSpec blob;
    blob.num_elems = num_chunks * kChunkElems;
    blob.tensors = {{.name = "all", .shape = {num_chunks, kChunkElems}}};
    ModelSpec model;
    model.blobs = {blob};
    RunConfig run;
    run.precision = {.wire = Dtype::kBf16, .gradients = Dtype::kBf16};
    store_ = Store::Create(model, run).value();
    for (auto& leaf : leaves_) leaf.resize(static_cast<size_t>(blob.num_elems));
  }

  int64_t num_chunks() const { return num_chunks_; }
  int64_t num_elems() const { return num_chunks_ * kChunkElems; }
  ChunkState Chunk(int64_t chunk) { return store_->Chunk(BlobId(0), chunk, Version(0)); }
  const uint16_t* Leaf(int which, int64_t chunk) const { return leaves_[which].data() + chunk * kChunkElems; }

  // Values of the usual sizes; first touched by the threads that use them.
  void Fill(int64_t chunk) {
    std::vector<float> weights(kChunkElems), first(kChunkElems), second(kChunkElems);
    for (int64_t i = 0; i < kChunkElems; ++i) {
      const auto noise =
          static_cast<int32_t>((static_cast<uint64_t>(i + chunk) * 0x9E3779B97F4A7C15u) >> 40) - (1 << 23);
      weights[i] = static_cast<float>(noise) * 0x1p-28f;
      first[i] = static_cast<float>(noise) * 0x1p-35f;
      second[i] = first[i] * first[i];
      leaves_[0][chunk * kChunkElems + i] = ToBf16(first[i]).bits;
      leaves_[1][chunk * kChunkElems + i] = ToBf16(-0.5f * first[i]).bits;
    }
    store_->LoadMaster(BlobId(0), Version(0), chunk * kChunkElems, weights);
    store_->LoadMaster(BlobId(0), Version(1), chunk * kChunkElems, weights);
    store_->LoadMoment(BlobId(0), 0, chunk * kChunkElems, first);
    store_->LoadMoment(BlobId(0), 1, chunk * kChunkElems, second);
  }

 private:
  const int64_t num_chunks_;
  std::unique_ptr<Store> store_;
  std::vector<uint16_t> leaves_[2];
};

void Update(Work& work, int64_t chunk, const UpdateScalars& scalars, double& squares) {
  ChunkGradient gradient;
  for (int v = 0; v < 2; ++v) {
    gradient.operands.push_back({Dtype::kBf16, reinterpret_cast<const std::byte*>(work.Leaf(v, chunk)), {v, 1}, 0});
  }
  gradient.program = {{SumOp::Kind::kLoad, 0}, {SumOp::Kind::kLoad, 1}, {SumOp::Kind::kAdd, 0}};
  const DecayRange all{0, kChunkElems, true};
  UpdateChunk(work.Chunk(chunk), gradient, absl::MakeConstSpan(&all, 1), scalars, &squares);
}

// Reads and writes what Update does. `one` and `zero` are not known to the compiler, so nothing is
// left out, and no value changes, so both sides always see the same numbers.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void Floor(const uint16_t* __restrict wire_in, uint16_t* __restrict wire_out, uint16_t* __restrict rest,
           float* __restrict m, float* __restrict v, const uint16_t* __restrict a, const uint16_t* __restrict b,
           float one, uint16_t zero) {
  for (int64_t i = 0; i < kChunkElems; ++i) {
    wire_out[i] = static_cast<uint16_t>(wire_in[i] ^ (a[i] & zero));
    rest[i] = static_cast<uint16_t>(rest[i] ^ (b[i] & zero));
    m[i] *= one;
    v[i] *= one;
  }
}

// Every chunk once, by `threads` threads; seconds.
double RunAll(int threads, int64_t num_chunks, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next = 0;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      const ScopedFlushDenormals flush;
      for (int64_t chunk = next++; chunk < num_chunks; chunk = next++) body(chunk);
    });
  }
  for (std::thread& thread : pool) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void PrintSide(const char* name, const std::vector<double>& seconds, double parameters) {
  const double median = Median(seconds);
  std::printf("%-10s %8.4f s  [%.4f .. %.4f]  %7.0f M parameters/s  %6.1f GB/s\n", name, median,
              *std::min_element(seconds.begin(), seconds.end()), *std::max_element(seconds.begin(), seconds.end()),
              parameters / median / 1e6, parameters * kBytesPerParameter / median / 1e9);
}

void Measure(const Settings& settings) {
  Work work(settings.millions * 1000000 / kChunkElems + 1);
  OptimizerConfig optimizer;
  optimizer.weight_decay = 0.1;
  const UpdateScalars scalars = ComputeUpdateScalars(optimizer, 1e-4, 10, 1);
  volatile float one = 1;
  volatile uint16_t zero = 0;
  std::vector<double> squares(static_cast<size_t>(work.num_chunks()));
  const auto update = [&](int64_t c) { Update(work, c, scalars, squares[c]); };
  const auto floor = [&](int64_t c) {
    const ChunkState s = work.Chunk(c);
    Floor(static_cast<const uint16_t*>(s.wire_in), static_cast<uint16_t*>(s.wire_out), s.rest, s.moment1, s.moment2,
          work.Leaf(0, c), work.Leaf(1, c), one, zero);
  };
  RunAll(settings.threads, work.num_chunks(), [&](int64_t c) { work.Fill(c); });
  const auto run = [&](const std::function<void(int64_t)>& body) {
    return RunAll(settings.threads, work.num_chunks(), body);
  };
  std::vector<double> floors, updates;
  for (int r = -1; r < settings.repeats; ++r) {
    const double floor_seconds = run(floor), update_seconds = run(update);
    if (r < 0) continue;  // warm-up
    floors.push_back(floor_seconds);
    updates.push_back(update_seconds);
  }
  const double parameters = static_cast<double>(work.num_elems());
  const double ratio = Median(floors) / Median(updates);
  std::printf("fused AdamW update, %.0f M parameters, %d threads, median of %d\n", parameters / 1e6, settings.threads,
              settings.repeats);
  PrintSide("plain loop", floors, parameters);
  PrintSide("update", updates, parameters);
  std::printf("update reaches %.3f of the byte floor (goal: 0.85)\n", ratio);
  const nlohmann::json line = {{"name", "update"},
                               {"ratio", ratio},
                               {"parameters", work.num_elems()},
                               {"threads", settings.threads},
                               {"repeats", settings.repeats},
                               {"floor_seconds", Median(floors)},
                               {"update_seconds", Median(updates)}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace
}  // namespace eps::server

int main(int argc, char** argv) {
  eps::server::Settings settings;
  CLI::App app{"The fused AdamW update against a plain loop with the same reads and writes."};
  app.add_option("--millions", settings.millions, "Parameters, in millions")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--threads", settings.threads, "Threads on both sides")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--repeats", settings.repeats, "Runs of each side")->capture_default_str()->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  eps::server::Measure(settings);
  return 0;
}
