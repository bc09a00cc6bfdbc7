#ifndef EPS_TESTS_TRANSPORT_DATA_PLANE_DAEMON_H_
#define EPS_TESTS_TRANSPORT_DATA_PLANE_DAEMON_H_

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
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/store/store.h"
#include "gpu_worker/transport/transport_conformance.h"

namespace eps {

inline constexpr uint64_t kIncarnation = 4711;

inline float ValueAt(const server::GradientOperand& operand, size_t i) {
  if (operand.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, operand.values + i * sizeof(value), sizeof(value));
    return value;
  }
  Bf16 narrow;
  std::memcpy(&narrow, operand.values + i * sizeof(narrow), sizeof(narrow));
  return ToFloat(narrow);
}

inline std::vector<float> Evaluate(const server::ChunkGradient& gradient, size_t num_elems) {
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

// The daemon's store and aggregator as they are; how workers reach them is for those who derive.
class DataPlaneDaemon : public worker::TransportTestDaemon {
 public:
  DataPlaneDaemon(worker::TransportTestOptions options, int64_t window_bytes) : model_(*options.model) {
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
  }

  void Publish(BlobId blob, Version version, absl::Span<const float> master) override {
    if (version == Version(0)) {
      EPS_CHECK(store_->LoadMaster(blob, version, 0, master).ok());
    } else {
      for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
        const server::ChunkState state = *store_->Chunk(blob, chunk, Version(version.value() - 1));
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

 protected:
  void Stop() {
    aggregator_->Stop(absl::CancelledError("the daemon ends"));
    store_->CancelWaiters(absl::CancelledError("the daemon ends"));
  }

  const ModelSpec& model_;
  RunConfig run_;

 private:
  void Consume(BlobId blob, int64_t chunk, const server::ChunkGradient& gradient) {
    std::vector<float> sum = Evaluate(gradient, static_cast<size_t>(model_.blob(blob).chunk_elems(chunk)));
    MutexLock lock(mu_);
    EXPECT_TRUE(sums_.emplace(std::make_pair(blob, chunk), std::move(sum)).second) << "consumed twice";
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  std::map<std::pair<BlobId, int64_t>, std::vector<float>> sums_ ABSL_GUARDED_BY(mu_);

 protected:
  std::unique_ptr<server::Store> store_;
  std::unique_ptr<server::Aggregator> aggregator_;
};

}  // namespace eps

#endif  // EPS_TESTS_TRANSPORT_DATA_PLANE_DAEMON_H_
