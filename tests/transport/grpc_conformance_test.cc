#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/store/store.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "gpu_worker/transport/transport_conformance.h"

namespace eps {
namespace {

constexpr uint64_t kIncarnation = 4711;

float ValueAt(const server::GradientOperand& operand, size_t i) {
  if (operand.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, operand.values + i * sizeof(value), sizeof(value));
    return value;
  }
  Bf16 narrow;
  std::memcpy(&narrow, operand.values + i * sizeof(narrow), sizeof(narrow));
  return ToFloat(narrow);
}

std::vector<float> Evaluate(const server::ChunkGradient& gradient, size_t num_elems) {
  std::vector<float> sums(num_elems);
  for (size_t i = 0; i < num_elems; ++i) {
    std::vector<float> stack;
    for (const SumOp& op : gradient.program) {
      if (op.kind == SumOp::Kind::kLoad) {
        stack.push_back(ValueAt(gradient.operands[op.operand], i));
      } else {
        const float right = stack.back();
        stack.pop_back();
        stack.back() += right;
      }
    }
    sums[i] = stack.back();
  }
  return sums;
}

// The daemon's data plane as it is, behind a real socket.
class GrpcDaemon final : public worker::TransportTestDaemon {
 public:
  GrpcDaemon(worker::TransportTestOptions options, int64_t window_bytes) : model_(*options.model) {
    run_.model = model_.config;
    run_.batch.virtual_nodes = options.virtual_nodes;
    run_.precision = {.wire = options.wire_dtype, .gradients = options.wire_dtype};
    store_ = server::Store::Create(model_, run_).value();
    aggregator_ = server::Aggregator::Create(
                      {.model = &model_,
                       .virtual_nodes = options.virtual_nodes,
                       .gradients = options.wire_dtype,
                       .window_bytes = window_bytes,
                       .consume = [this](StepId, BlobId blob, int64_t chunk,
                                         server::ChunkGradient gradient) { Consume(blob, chunk, gradient); },
                       .on_step_in = [](StepId) {}})
                      .value();
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(server::NewDataService({.incarnation = kIncarnation,
                                               .model = &model_,
                                               .store = store_.get(),
                                               .aggregator = aggregator_.get(),
                                               .last_version = Version(100)}));
    server_ = server::RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0).value();
  }
  ~GrpcDaemon() override {
    aggregator_->Stop(absl::CancelledError("the daemon ends"));
    store_->CancelWaiters(absl::CancelledError("the daemon ends"));
  }

  std::unique_ptr<worker::Transport> NewTransport() override {
    return worker::NewGrpcTransport({.channel = worker::NewDataChannel(server_->address()),
                                     .incarnation = kIncarnation,
                                     .worker_id = WorkerId(1),
                                     .model = &model_,
                                     .wire_dtype = run_.precision.wire});
  }

  void Publish(BlobId blob, Version version, absl::Span<const float> master) override {
    if (version == Version(0)) {
      store_->LoadMaster(blob, version, 0, master);
    } else {
      for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
        const server::ChunkState state = store_->Chunk(blob, chunk, Version(version.value() - 1));
        for (int64_t i = 0; i < state.num_elems; ++i) {
          const float value = master[chunk * kChunkElems + i];
          if (state.wire_dtype == Dtype::kF32) {
            static_cast<float*>(state.wire_out)[i] = value;
          } else {
            static_cast<Bf16*>(state.wire_out)[i] = ToBf16(value);
          }
        }
      }
    }
    store_->Publish(blob, version);
  }

  void BeginStep(StepId step) override { aggregator_->BeginStep(step); }

  absl::StatusOr<std::vector<float>> Gradient(StepId, BlobId blob) override {
    const BlobSpec& spec = model_.blob(blob);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::vector<float> all;
    MutexLock lock(mu_);
    for (int64_t chunk = 0; chunk < spec.num_chunks(); ++chunk) {
      while (sums_.count({blob, chunk}) == 0) {
        if (std::chrono::steady_clock::now() > deadline) return absl::FailedPreconditionError("a chunk is missing");
        changed_.WaitFor(mu_, std::chrono::milliseconds(100));
      }
      const std::vector<float>& sum = sums_.at({blob, chunk});
      all.insert(all.end(), sum.begin(), sum.end());
    }
    return all;
  }

 private:
  void Consume(BlobId blob, int64_t chunk, const server::ChunkGradient& gradient) {
    std::vector<float> sum = Evaluate(gradient, static_cast<size_t>(model_.blob(blob).chunk_elems(chunk)));
    MutexLock lock(mu_);
    EXPECT_TRUE(sums_.emplace(std::make_pair(blob, chunk), std::move(sum)).second) << "consumed twice";
    changed_.NotifyAll();
  }

  const ModelSpec& model_;
  RunConfig run_;
  Mutex mu_;
  CondVar changed_;
  std::map<std::pair<BlobId, int64_t>, std::vector<float>> sums_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<server::Store> store_;
  std::unique_ptr<server::Aggregator> aggregator_;
  std::unique_ptr<server::RpcServer> server_;
};

}  // namespace

namespace worker {

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformanceTest,
                         testing::Values(TransportCase{"grpc", [](TransportTestOptions options) {
                                                         return std::make_unique<GrpcDaemon>(options, 0);
                                                       }}));

// The daemon's window holds one chunk of fp32 and little more.
class SmallWindowTest : public TransportConformanceTest {};
INSTANTIATE_TEST_SUITE_P(Grpc, SmallWindowTest,
                         testing::Values(TransportCase{"grpc_small_window", [](TransportTestOptions options) {
                                                         return std::make_unique<GrpcDaemon>(options, kChunkElems * 4);
                                                       }}));

TEST_P(SmallWindowTest, EverythingGetsItsTurnInWhateverOrderItIsPushed) {
  for (const bool backward : {true, false}) {
    StartDaemon(Dtype::kBf16);
    daemon_->BeginStep(StepId(0));
    const auto first = daemon_->NewTransport();
    const auto second = daemon_->NewTransport();
    std::vector<const LayerSpec*> layers;
    for (const LayerSpec& layer : model_.layers) layers.insert(backward ? layers.begin() : layers.end(), &layer);
    for (const LayerSpec* layer : layers) {
      for (const BlobUse& use : layer->blobs) {
        for (int vnode = 0; vnode < 4; ++vnode) {
          (vnode < 2 ? first : second)->Push(Make(StepId(0), use.blob, use.use, {vnode, 1}, Dtype::kBf16));
        }
      }
    }
    EXPECT_OK(first->Flush());
    EXPECT_OK(second->Flush());
    for (const BlobSpec& blob : model_.blobs) {
      EXPECT_THAT(daemon_->Gradient(StepId(0), blob.id), IsOkAndHolds(ExpectedGradient(blob.id)));
    }
  }
}

}  // namespace worker
}  // namespace eps
