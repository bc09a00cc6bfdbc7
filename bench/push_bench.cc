// A token table's gradient from a worker's transport to a daemon's aggregator over loopback: as an embedding makes it, where
// most rows are zero as no token of the step reads them, against one without zeros, which goes out from where it lies. Two
// processes; the sides take turns, each push being of a step of its own; a ratio is the median of the rounds' own. Loopback
// is faster than most networks, so that more is saved there.
//
//   push_bench [rounds]     20 by default

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "bench/support.h"
#include "common/base/ids.h"
#include "common/base/malloc_settings.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "common/formats/sparse_chunk.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "nlohmann/json.hpp"

namespace eps::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kIncarnation = 1;
constexpr BlobId kTable(0);
constexpr int kEmbedding = 0;  // the use
constexpr int kVocab = 50257, kWidth = 768, kTokensAStep = 32768;

ModelSpec BenchModel() {
  return BuildModel({.num_layers = 1, .d_model = kWidth, .num_heads = 12, .context = 8, .vocab = kVocab}).value();
}

// The daemon's process: writes its address, and begins a step whenever the one before is in.
void Serve(int out_fd) {
  const ModelSpec model = BenchModel();
  std::unique_ptr<server::Aggregator> aggregator;
  aggregator =
      server::Aggregator::Create({.model = &model,
                                  .virtual_nodes = 1,
                                  .gradients = Dtype::kBf16,
                                  .consume = [](StepId, BlobId, int64_t, server::ChunkGradient) {},
                                  .on_step_in = [&](StepId step) { aggregator->BeginStep(StepId(step.value() + 1)); }})
          .value();
  aggregator->BeginStep(StepId(0));
  std::vector<std::unique_ptr<grpc::Service>> services;
  // Without a store, as nothing is pulled.
  services.push_back(
      server::NewDataService({.incarnation = kIncarnation, .model = &model, .aggregator = aggregator.get()}));
  const auto server = server::RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0).value();
  const std::string address = server->address() + "\n";
  EPS_CHECK(write(out_fd, address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  pause();
}

// The rows that a step's tokens read: the n-th token comes as often as 1 / (n + 2.7), as plans assume.
std::vector<bool> RowsRead() {
  std::vector<double> weights(kVocab);
  for (int rank = 0; rank < kVocab; ++rank) weights[static_cast<size_t>(rank)] = 1 / (rank + 3.7);
  std::mt19937 random(1);
  std::discrete_distribution<int> token(weights.begin(), weights.end());
  std::vector<bool> rows(kVocab);
  for (int i = 0; i < kTokensAStep; ++i) rows[static_cast<size_t>(token(random))] = true;
  return rows;
}

class Bench {
 public:
  explicit Bench(const std::string& address)
      : transport_(worker::NewGrpcTransport({.channels = {worker::NewDataChannel(address)},
                                             .incarnation = kIncarnation,
                                             .worker_id = WorkerId(1),
                                             .model = &model_,
                                             .wire_dtype = Dtype::kBf16})) {
    int64_t most_elems = 0;
    for (const BlobSpec& blob : model_.blobs) most_elems = std::max(most_elems, blob.num_elems);
    dense_ = NewMemory(most_elems * SizeOf(Dtype::kBf16));
    std::fill(dense_.begin(), dense_.end(), std::byte{0x3c});
    sparse_ = NewMemory(model_.blob(kTable).num_elems * SizeOf(Dtype::kBf16));
    std::fill(sparse_.begin(), sparse_.end(), std::byte{0});
    const std::vector<bool> rows = RowsRead();
    const int64_t row_bytes = kWidth * SizeOf(Dtype::kBf16);
    for (int64_t row = 0; row < kVocab; ++row) {
      if (rows[static_cast<size_t>(row)]) std::fill_n(sparse_.begin() + row * row_bytes, row_bytes, std::byte{0x3c});
    }
    rows_read_ = std::count(rows.begin(), rows.end(), true);
  }

  // Seconds until the daemon holds all of the table's gradient; then the rest of the step.
  double PushTable(bool sparse) {
    const auto start = Clock::now();
    Push(kTable, kEmbedding, sparse ? sparse_ : dense_);
    EPS_CHECK(transport_->Flush().ok());
    const std::chrono::duration<double> took = Clock::now() - start;
    for (const BlobSpec& blob : model_.blobs) {
      for (int use = 0; use < static_cast<int>(blob.uses.size()); ++use) {
        if (blob.id != kTable || use != kEmbedding) Push(blob.id, use, dense_);
      }
    }
    EPS_CHECK(transport_->Flush().ok());
    step_ = StepId(step_.value() + 1);
    return took.count();
  }

  int64_t table_bytes() const { return model_.blob(kTable).num_elems * SizeOf(Dtype::kBf16); }
  int64_t rows_read() const { return rows_read_; }
  // Of the table's gradient, as it is sent.
  int64_t SentBytes() const {
    int64_t num_bytes = 0;
    for (int64_t at = 0; at < table_bytes(); at += kChunkElems * SizeOf(Dtype::kBf16)) {
      const auto chunk =
          sparse_.subspan(static_cast<size_t>(at),
                          static_cast<size_t>(std::min(kChunkElems * SizeOf(Dtype::kBf16), table_bytes() - at)));
      const auto packed = PackSparseChunk(chunk);
      num_bytes += static_cast<int64_t>(packed.has_value() ? packed->size() : chunk.size());
    }
    return num_bytes;
  }

 private:
  void Push(BlobId blob, int use, absl::Span<const std::byte> gradient) {
    transport_->Push(
        {.step = step_,
         .blob = blob,
         .use = use,
         .node = {0, 1},
         .chunks = model_.blob(blob).all_chunks(),
         .dtype = Dtype::kBf16,
         .payload = gradient.subspan(0, static_cast<size_t>(model_.blob(blob).num_elems * SizeOf(Dtype::kBf16))),
         .owner = std::make_shared<int>(0)});
  }

  const ModelSpec model_ = BenchModel();
  const std::unique_ptr<worker::Transport> transport_;
  absl::Span<std::byte> dense_, sparse_;
  int64_t rows_read_ = 0;
  StepId step_ = StepId(0);
};

int Main(int rounds) {
  SetUpMalloc();                          // as the programs do
  const Peer peer = StartPeer(1, Serve);  // before gRPC has threads
  Bench bench(peer.lines[0]);
  std::vector<double> dense, sparse, ratios;
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    double seconds[2] = {};
    for (const int turn : {0, 1}) {
      const bool is_sparse = (turn + round) % 2 != 0;
      seconds[is_sparse] = bench.PushTable(is_sparse);
    }
    if (round < 0) continue;
    dense.push_back(seconds[0]);
    sparse.push_back(seconds[1]);
    ratios.push_back(seconds[0] / seconds[1]);
  }
  EndPeer(peer);
  const double table_gb = static_cast<double>(bench.table_bytes()) / 1e9;
  const double sent_share = static_cast<double>(bench.SentBytes()) / static_cast<double>(bench.table_bytes());
  std::printf(
      "the gradient of %d rows of %d in bf16, %.0f MB; %d tokens a step read %.0f%% of the rows; medians of %d "
      "rounds\n",
      kVocab, kWidth, table_gb * 1e3, kTokensAStep, 100 * static_cast<double>(bench.rows_read()) / kVocab, rounds);
  std::printf("%-12s %8s %12s\n", "", "ms", "share sent");
  std::printf("%-12s %8.1f %12.3f\n", "no zeros", Median(dense) * 1e3, 1.0);
  std::printf("%-12s %8.1f %12.3f\n", "embedding's", Median(sparse) * 1e3, sent_share);
  std::printf("no zeros / embedding's, time: %.2f\n", Median(ratios));
  const nlohmann::ordered_json json = {{"name", "push"},
                                       {"ratio", Median(ratios)},
                                       {"share_sent", sent_share},
                                       {"dense_seconds", Median(dense)},
                                       {"sparse_seconds", Median(sparse)}};
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::bench

int main(int argc, char** argv) { return eps::bench::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 20); }
