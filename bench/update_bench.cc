// The fused AdamW update of one step (sum of two 16-bit contributions, norm, update, next 16-bit
// wire form) against a plain loop that reads and writes the same bytes and computes nothing
// (prefetching made it slower, so it has none), with moments in fp32, bf16 and fp8. All sides run in turn,
// in one process; ratios of their medians are what matters, absolute figures drift with the machine.
//
// One more is updated in place (precision.wire_versions: 1): the same bytes, of which those of the wire form are in a cache
// when they are written.
//
//   bytes per parameter: reads 2 (wire) + 2 (rest) + 8 (moments; bf16: 4, fp8: 2 1/16) + 4 (contributions), writes 2 + 2
//   + 8 (4, 2 1/16)

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/types/span.h"
#include "bench/support.h"
#include "common/base/ids.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/float_mode.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr MomentFormat kFormats[] = {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8};

constexpr double BytesPerParameter(MomentFormat moments) {
  return 12 + 4 * static_cast<double>(MomentBytes(moments, kChunkElems)) / kChunkElems;
}
// Master, moments and gradient once more.
constexpr double LambBytesPerParameter(MomentFormat moments) {
  return BytesPerParameter(moments) + 8 + 2 * static_cast<double>(MomentBytes(moments, kChunkElems)) / kChunkElems;
}

struct Settings {
  int64_t millions = 100;  // parameters
  int threads = 2;
  int repeats = 7;
};

// One blob of so many whole chunks, and two 16-bit leaves of its gradient.
class Work {
 public:
  Work(int64_t num_chunks, MomentFormat moments, int wire_versions) : num_chunks_(num_chunks) {
    BlobSpec blob;
    blob.num_elems = num_chunks * kChunkElems;
    blob.tensors = {{.name = "all", .shape = {num_chunks, kChunkElems}}};
    ModelSpec model;
    model.blobs = {blob};
    RunConfig run;
    run.precision = {
        .wire = Dtype::kBf16, .gradients = Dtype::kBf16, .moments = moments, .wire_versions = wire_versions};
    store_ = Store::Create(model, run).value();
    for (auto& leaf : leaves_) leaf.resize(static_cast<size_t>(blob.num_elems));
  }

  int64_t num_chunks() const { return num_chunks_; }
  int64_t num_elems() const { return num_chunks_ * kChunkElems; }
  ChunkState Chunk(int64_t chunk) { return *store_->Chunk(BlobId(0), chunk, Version(0)); }
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
    EPS_CHECK(store_->LoadMaster(BlobId(0), Version(0), chunk * kChunkElems, weights).ok());
    EPS_CHECK(store_->LoadMaster(BlobId(0), Version(1), chunk * kChunkElems, weights).ok());
    EPS_CHECK(store_->LoadMoment(BlobId(0), 0, chunk * kChunkElems, first).ok());
    EPS_CHECK(store_->LoadMoment(BlobId(0), 1, chunk * kChunkElems, second).ok());
  }

 private:
  const int64_t num_chunks_;
  std::unique_ptr<Store> store_;
  std::vector<uint16_t> leaves_[2];
};

ChunkGradient GradientOf(const Work& work, int64_t chunk) {
  ChunkGradient gradient;
  for (int v = 0; v < 2; ++v) {
    gradient.operands.push_back({Dtype::kBf16, reinterpret_cast<const std::byte*>(work.Leaf(v, chunk)), {v, 1}, 0});
  }
  gradient.program = {{SumOp::Kind::kLoad, 0}, {SumOp::Kind::kLoad, 1}, {SumOp::Kind::kAdd, 0}};
  return gradient;
}

constexpr GroupRange kAll{0, kChunkElems, 0};

void Update(Work& work, int64_t chunk, const UpdateScalars& scalars, double& squares) {
  UpdateChunk(work.Chunk(chunk), GradientOf(work, chunk), absl::MakeConstSpan(&kAll, 1), scalars, &squares);
}

// The first of LAMB's two passes; Update is the second.
void MeasureStep(Work& work, int64_t chunk, const UpdateScalars& scalars, double& squares) {
  StepSquares step;
  squares = MeasureSteps(work.Chunk(chunk), GradientOf(work, chunk), absl::MakeConstSpan(&kAll, 1), scalars,
                         absl::MakeSpan(&step, 1));
}

// Reads and writes what Update does. `zero` is not known to the compiler, so nothing is left out, and no value
// changes, so both sides always see the same numbers. Bits: of a moment's element; of fp8 a few more bytes follow.
template <typename Bits>
__attribute__((always_inline)) inline void FloorOf(const ChunkState& chunk, const uint16_t* __restrict a,
                                                   const uint16_t* __restrict b, uint16_t zero) {
  const auto* __restrict wire_in = static_cast<const uint16_t*>(chunk.wire_in);
  auto* __restrict wire_out = static_cast<uint16_t*>(chunk.wire_out);
  uint16_t* __restrict rest = chunk.rest;
  auto* __restrict m = static_cast<Bits*>(chunk.moment1);
  auto* __restrict v = static_cast<Bits*>(chunk.moment2);
  for (int64_t i = 0; i < kChunkElems; ++i) {
    wire_out[i] = static_cast<uint16_t>(wire_in[i] ^ (a[i] & zero));
    rest[i] = static_cast<uint16_t>(rest[i] ^ (b[i] & zero));
    m[i] = static_cast<Bits>(m[i] ^ zero);
    v[i] = static_cast<Bits>(v[i] ^ zero);
  }
  const int64_t all = MomentBytes(chunk.moment_format, kChunkElems) / static_cast<int64_t>(sizeof(Bits));
  for (int64_t i = kChunkElems; i < all; ++i) {
    m[i] = static_cast<Bits>(m[i] ^ zero);
    v[i] = static_cast<Bits>(v[i] ^ zero);
  }
}
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void Floor(const ChunkState& chunk, const uint16_t* a, const uint16_t* b, uint16_t zero) {
  switch (chunk.moment_format) {
    case MomentFormat::kFp32:
      return FloorOf<uint32_t>(chunk, a, b, zero);
    case MomentFormat::kBf16:
      return FloorOf<uint16_t>(chunk, a, b, zero);
    case MomentFormat::kFp8:
      return FloorOf<uint8_t>(chunk, a, b, zero);
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

enum class Loop { kPlain, kUpdate, kLamb };

struct Side {
  MomentFormat moments;
  Loop loop;
  int wire_versions = 2;
  std::vector<double> seconds = {};
  double seconds_per_parameter = 0;  // the median
};

void Print(const Side& side) {
  const double rate = 1 / side.seconds_per_parameter;
  const double scale = side.seconds_per_parameter / Median(side.seconds);
  std::printf(
      "%-11s %-5s moments%s  %6.3f ns a parameter  [%.3f .. %.3f]  %6.0f M parameters/s  %6.1f GB/s\n",
      side.loop == Loop::kPlain    ? "plain loop"
      : side.loop == Loop::kUpdate ? "update"
                                   : "LAMB",
      std::string(MomentFormatName(side.moments)).c_str(), side.wire_versions == 1 ? ", in place" : "",
      1e9 * side.seconds_per_parameter, 1e9 * scale * *std::min_element(side.seconds.begin(), side.seconds.end()),
      1e9 * scale * *std::max_element(side.seconds.begin(), side.seconds.end()), rate / 1e6,
      rate * (side.loop == Loop::kLamb ? LambBytesPerParameter(side.moments) : BytesPerParameter(side.moments)) / 1e9);
}

// The sides in turn, with memory of their own for each dtype of moments.
std::vector<Side> MeasureSides(const Settings& settings, int64_t num_chunks) {
  OptimizerConfig optimizer;
  const TensorGroup decaying = {.weight_decay = 0.1};
  UpdateScalars scalars = ComputeUpdateScalars(optimizer, absl::MakeConstSpan(&decaying, 1), 1e-4, 10, 1);
  volatile uint16_t zero = 0;
  std::vector<double> squares(static_cast<size_t>(num_chunks));
  std::map<std::pair<MomentFormat, int>, std::unique_ptr<Work>> works;
  const auto add_work = [&](MomentFormat moments, int wire_versions) {
    Work& work = *(works[{moments, wire_versions}] = std::make_unique<Work>(num_chunks, moments, wire_versions));
    RunAll(settings.threads, num_chunks, [&](int64_t c) { work.Fill(c); });
  };
  std::vector<Side> sides;
  for (const MomentFormat moments : kFormats) {
    add_work(moments, 2);
    for (const Loop loop : {Loop::kPlain, Loop::kUpdate}) sides.push_back({moments, loop});
  }
  sides.push_back({MomentFormat::kFp32, Loop::kLamb});
  add_work(MomentFormat::kFp32, 1);
  sides.push_back({MomentFormat::kFp32, Loop::kUpdate, 1});
  for (int r = -1; r < settings.repeats; ++r) {  // the first is to warm up
    for (Side& side : sides) {
      Work& work = *works[{side.moments, side.wire_versions}];
      double seconds = 0;
      if (side.loop == Loop::kLamb) {
        seconds += RunAll(settings.threads, num_chunks,
                          [&](int64_t c) { MeasureStep(work, c, scalars, squares[static_cast<size_t>(c)]); });
      }
      seconds += RunAll(settings.threads, num_chunks, [&](int64_t c) {
        side.loop != Loop::kPlain ? Update(work, c, scalars, squares[static_cast<size_t>(c)])
                                  : Floor(work.Chunk(c), work.Leaf(0, c), work.Leaf(1, c), zero);
      });
      if (r >= 0) side.seconds.push_back(seconds);
    }
    ++scalars.moment_key;
  }
  for (Side& side : sides) {
    side.seconds_per_parameter = Median(side.seconds) / static_cast<double>(num_chunks * kChunkElems);
  }
  return sides;
}

void Measure(const Settings& settings) {
  const int64_t num_chunks = settings.millions * 1000000 / kChunkElems + 1;
  const std::vector<Side> sides = MeasureSides(settings, num_chunks);
  std::printf("fused AdamW update, %lld M parameters, %d threads, median of %d\n",
              static_cast<long long>(num_chunks * kChunkElems / 1000000), settings.threads, settings.repeats);
  for (const Side& side : sides) Print(side);
  const auto over = [&](int a, int b) { return sides[a].seconds_per_parameter / sides[b].seconds_per_parameter; };
  std::printf("update reaches %.3f of the byte floor, with bf16 moments %.3f (goal: 0.85), with fp8 moments %.3f\n",
              over(0, 1), over(2, 3), over(4, 5));
  const double fp32_bytes = BytesPerParameter(MomentFormat::kFp32);
  std::printf("with bf16 moments it is %.3f times as fast; bytes allow %.3f; with fp8 %.3f of %.3f\n", over(1, 3),
              fp32_bytes / BytesPerParameter(MomentFormat::kBf16), over(1, 5),
              fp32_bytes / BytesPerParameter(MomentFormat::kFp8));
  std::printf("LAMB takes %.3f times as long; bytes allow %.3f\n", over(6, 1),
              LambBytesPerParameter(MomentFormat::kFp32) / fp32_bytes);
  std::printf("in place it is %.3f times as fast\n", over(1, 7));
  const nlohmann::json line = {{"name", "update"},
                               {"ratio", over(0, 1)},
                               {"bf16_moments_ratio", over(2, 3)},
                               {"bf16_moments_speedup", over(1, 3)},
                               {"fp8_moments_ratio", over(4, 5)},
                               {"fp8_moments_speedup", over(1, 5)},
                               {"parameters", num_chunks * kChunkElems},
                               {"threads", settings.threads},
                               {"repeats", settings.repeats},
                               {"floor_seconds", Median(sides[0].seconds)},
                               {"update_seconds", Median(sides[1].seconds)},
                               {"bf16_moments_floor_seconds", Median(sides[2].seconds)},
                               {"bf16_moments_update_seconds", Median(sides[3].seconds)},
                               {"fp8_moments_floor_seconds", Median(sides[4].seconds)},
                               {"fp8_moments_update_seconds", Median(sides[5].seconds)},
                               {"lamb_over_update", over(6, 1)},
                               {"in_place_speedup", over(1, 7)}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace
}  // namespace eps::server

int main(int argc, char** argv) {
  eps::server::Settings settings;
  CLI::App app{"The fused AdamW update against a plain loop with the same reads and writes."};
  app.add_option("--millions", settings.millions, "Parameters, in millions; 60 MB of memory each")
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
