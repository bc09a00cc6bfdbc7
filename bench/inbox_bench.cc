// Gradients in a worker's inbox: updates that read them there, as of a chunk of which nothing else is missing, against
// updates of what was copied into the daemon's own memory before, as where more is to come. A worker's part of a step lies
// in a shared segment. All sides in turn, in one process; ratios of their medians.
//
//   inbox_bench [rounds]     9 by default

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "bench/support.h"
#include "common/base/ids.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "common/ipc/shared_segment.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
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

constexpr int64_t kChunks = 200;  // 52 million parameters
constexpr int64_t kWaiting = 60;  // chunks of those that are copied before the first is updated: more than caches hold
constexpr BlobId kBlob(0);

// A blob, its state, and one contribution to it in an inbox.
class Work {
 public:
  explicit Work(Dtype dtype)
      : dtype_(dtype),
        chunk_bytes_(kChunkElems * SizeOf(dtype)),
        inbox_(SharedSegment::Create("inbox-bench", kChunks * chunk_bytes_, SegmentWriter::kBoth).value()),
        window_(bench::NewMemory(kChunks * chunk_bytes_)),
        scalars_(ComputeUpdateScalars(OptimizerConfig(), std::vector<TensorGroup>(1), 1e-4, 1, 1)) {
    BlobSpec blob;
    blob.num_elems = kChunks * kChunkElems;
    blob.tensors = {{.name = "all", .shape = {kChunks, kChunkElems}}};
    ModelSpec model;
    model.blobs = {blob};
    RunConfig run;
    run.precision = {.wire = dtype, .gradients = dtype};
    store_ = Store::Create(model, run).value();
    const std::vector<float> values(kChunkElems, 0.01f);
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
      for (const int64_t version : {0, 1}) {
        EPS_CHECK(store_->LoadMaster(kBlob, Version(version), chunk * kChunkElems, values).ok());
      }
      for (const int moment : {0, 1}) EPS_CHECK(store_->LoadMoment(kBlob, moment, chunk * kChunkElems, values).ok());
    }
    std::memset(inbox_.bytes().data(), 0, inbox_.bytes().size());
  }

  void UpdateInPlace(int64_t chunk) { Update(chunk, inbox_.bytes().data() + chunk * chunk_bytes_); }
  void Copy(int64_t chunk) {
    EPS_CHECK(inbox_.Read(chunk * chunk_bytes_, window_.subspan(WindowBytes(chunk), ChunkBytes())).ok());
  }
  void UpdateCopy(int64_t chunk) { Update(chunk, window_.data() + WindowBytes(chunk)); }

 private:
  size_t ChunkBytes() const { return static_cast<size_t>(chunk_bytes_); }
  size_t WindowBytes(int64_t chunk) const { return static_cast<size_t>(chunk * chunk_bytes_); }
  void Update(int64_t chunk, const std::byte* values) {
    const ChunkGradient gradient = {.operands = {{dtype_, values, {0, 1}, 0}}, .program = {{SumOp::Kind::kLoad, 0}}};
    const GroupRange all{0, kChunkElems, 0};
    double squares = 0;
    UpdateChunk(*store_->Chunk(kBlob, chunk, Version(0)), gradient, absl::MakeConstSpan(&all, 1), scalars_, &squares);
  }

  const Dtype dtype_;
  const int64_t chunk_bytes_;
  const SharedSegment inbox_;
  const absl::Span<std::byte> window_;
  const UpdateScalars scalars_;
  std::unique_ptr<Store> store_;
};

// Of so many turns, which so many threads take in order.
double Seconds(int threads, int64_t num_turns, const std::function<void(int64_t)>& take_turn) {
  std::atomic<int64_t> next = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      const ScopedFlushDenormals flush;
      for (int64_t turn = next++; turn < num_turns; turn = next++) take_turn(turn);
    });
  }
  for (std::thread& worker : workers) worker.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

nlohmann::ordered_json Measure(Work& work, int threads, int rounds) {
  std::vector<double> copied, in_place;
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    const double with_copies = Seconds(threads, kChunks + kWaiting, [&](int64_t turn) {
      if (turn < kChunks) work.Copy(turn);
      if (turn >= kWaiting) work.UpdateCopy(turn - kWaiting);
    });
    const double without = Seconds(threads, kChunks, [&](int64_t chunk) { work.UpdateInPlace(chunk); });
    if (round < 0) continue;
    copied.push_back(with_copies);
    in_place.push_back(without);
  }
  return {{"threads", threads},
          {"copied_seconds", Median(copied)},
          {"in_place_seconds", Median(in_place)},
          {"ratio", Median(copied) / Median(in_place)}};
}

int Main(int rounds) {
  nlohmann::ordered_json json = {{"name", "inbox"}, {"ratio", 1e9}};
  std::printf("%lld million parameters; medians of %d rounds\n",
              static_cast<long long>(kChunks * kChunkElems / 1'000'000), rounds);
  std::printf("%-9s %8s %12s %12s %8s\n", "gradients", "threads", "copied s", "in place s", "ratio");
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    Work work(dtype);
    for (const int threads : {1, 2}) {
      const nlohmann::ordered_json side = Measure(work, threads, rounds);
      const auto of = [&](const char* key) { return side[key].get<double>(); };
      std::printf("%-9s %8d %12.4f %12.4f %8.3f\n", std::string(DtypeName(dtype)).c_str(), threads,
                  of("copied_seconds"), of("in_place_seconds"), of("ratio"));
      json[std::string(DtypeName(dtype))].push_back(side);
      json["ratio"] = std::min(json["ratio"].get<double>(), of("ratio"));
    }
  }
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::server

int main(int argc, char** argv) { return eps::server::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 9); }
