#ifndef EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_TESTING_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_TESTING_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/store/store.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

// Tests only: an engine with a store, and gradients of known values.
namespace eps::server {

inline constexpr int kVnodes = 3;
inline constexpr BlobId kWte(0), kBlock(2);

inline RunConfig SmallRun(ClipMode clip, double clip_norm = 1) {
  RunConfig run;
  // The block has 4 chunks and ends in a part of one.
  run.model = {.num_layers = 1, .d_model = 256, .num_heads = 2, .context = 16, .vocab = 100};
  run.batch.virtual_nodes = kVnodes;
  run.steps = 20;
  run.optimizer.peak_learning_rate = 1e-2;
  run.optimizer.weight_decay = 0.1;
  run.optimizer.clip = clip;
  run.optimizer.clip_norm = clip_norm;
  return run;
}

// How a step's updates come about.
struct Mode {
  ClipMode clip;
  OptimizerRule rule = OptimizerRule::kAdamW;
};
inline RunConfig SmallRun(Mode mode, double clip_norm = 1) {
  RunConfig run = SmallRun(mode.clip, clip_norm);
  run.optimizer.rule = mode.rule;
  return run;
}

struct ChunkId {
  BlobId blob;
  int64_t chunk;
};

// A store and an engine; publishes what is made.
class Trainer {
 public:
  explicit Trainer(const RunConfig& run, int threads = 2, int64_t first_step = 0, int64_t skipped = 0,
                   double last_norm = 0, LossScale loss_scale = {}, ChunkWitness* witness = nullptr,
                   std::vector<int64_t> updates = {}, const Trainer* from = nullptr)
      : run_(run), model_(*BuildModel(run.model)), store_(*Store::Create(model_, run_)) {
    for (const BlobSpec& blob : model_.blobs) {
      std::vector<float> values(static_cast<size_t>(blob.num_elems));
      for (size_t i = 0; i < values.size(); ++i) values[i] = FirstAt(static_cast<int64_t>(i));
      if (from != nullptr) {
        EXPECT_OK(from->store_->ReadMaster(blob.id, Version(first_step), 0, absl::MakeSpan(values)));
      }
      EXPECT_OK(store_->LoadMaster(blob.id, Version(first_step), 0, values));
      for (int which = 0; from != nullptr && which < store_->num_moments(); ++which) {
        EXPECT_OK(store_->LoadMoment(blob.id, which, 0, ReadMoment(*from->store_, blob, which, 0, blob.num_elems)));
      }
      store_->Publish(blob.id, Version(first_step));
      for (int64_t c = 0; !blob.frozen && c < blob.num_chunks(); ++c) chunks_.push_back({blob.id, c});
    }
    engine_ = *UpdateEngine::Create({.model = &model_,
                                     .run = &run_,
                                     .store = store_.get(),
                                     .witness = witness,
                                     .threads = threads,
                                     .first_step = StepId(first_step),
                                     .skipped_steps = skipped,
                                     .updates = std::move(updates),
                                     .last_norm = last_norm,
                                     .loss_scale = loss_scale,
                                     .on_blob_made =
                                         [this](BlobId blob, Version version) {
                                           store_->Publish(blob, version);
                                           MutexLock lock(mu_);
                                           made_.push_back(blob);
                                           changed_.NotifyAll();
                                         },
                                     .on_step_decided = [this] { ++decided_; },
                                     .on_step_made =
                                         [this](const StepUpdate& update) {
                                           MutexLock lock(mu_);
                                           updates_.push_back(update);
                                           changed_.NotifyAll();
                                         },
                                     .on_failure =
                                         [this](absl::Status status) {
                                           MutexLock lock(mu_);
                                           failure_ = status;
                                           changed_.NotifyAll();
                                         }});
  }

  const ModelSpec& model() const { return model_; }
  Store& store() const { return *store_; }
  UpdateEngine& engine() const { return *engine_; }
  const std::vector<ChunkId>& chunks() const { return chunks_; }
  int decided() const { return decided_; }

  // An element of any blob, before the first step.
  static float FirstAt(int64_t elem) { return 0.01f * static_cast<float>((elem * 7 + 3) % 101) - 0.5f; }
  // A gradient of vnode `vnode` that depends on nothing else than its arguments.
  static float GradientAt(int64_t step, int vnode, BlobId blob, int64_t elem) {
    const uint64_t mixed =
        (static_cast<uint64_t>(step + 1) * 1000003 + vnode * 7919 + blob.value() * 104729 + elem) * 0x9E3779B97F4A7C15u;
    return static_cast<float>(static_cast<int64_t>(mixed >> 40) - (1 << 23)) * 0x1p-30f;
  }
  // Summed by the "worker" over each of `nodes`, in the tree's order.
  ChunkGradient Gradient(int64_t step, ChunkId id, const std::vector<TreeNode>& nodes) const {
    struct Values {
      std::vector<std::vector<float>> nodes;
    };
    const int64_t count = model_.blob(id.blob).chunk_elems(id.chunk);
    auto values = std::make_shared<Values>();
    ChunkGradient gradient;
    for (const TreeNode node : nodes) {
      std::vector<float>& sums = values->nodes.emplace_back(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) sums[i] = SumAt(step, node, id.blob, id.chunk * kChunkElems + i);
      gradient.operands.push_back({Dtype::kF32, reinterpret_cast<const std::byte*>(sums.data()), node, 0});
    }
    gradient.program = SumProgram(nodes, kVnodes);
    gradient.owner = values;
    return gradient;
  }
  // What a witness must be shown of it.
  std::vector<float> Sum(int64_t step, ChunkId id) const {
    std::vector<float> sum(static_cast<size_t>(model_.blob(id.blob).chunk_elems(id.chunk)));
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = SumAt(step, {0, kVnodes}, id.blob, id.chunk * kChunkElems + static_cast<int64_t>(i));
    }
    return sum;
  }
  static std::vector<TreeNode> Leaves() { return {{0, 1}, {1, 1}, {2, 1}}; }

  void Submit(int64_t step, ChunkId id, const std::vector<TreeNode>& nodes = Leaves()) {
    engine_->Submit(StepId(step), id.blob, id.chunk, Gradient(step, id, nodes));
  }
  // Of what the step does not drop.
  void SubmitAll(int64_t step) {
    const std::vector<bool> dropped = Dropped(step);
    for (const ChunkId id : chunks_) {
      if (!dropped[static_cast<size_t>(id.blob.value())]) Submit(step, id);
    }
  }
  std::vector<bool> Dropped(int64_t step) const {
    return DroppedBlobs(model_, LayerDrop(model_, run_.layer_drop).DroppedIn(StepId(step)));
  }

  StepUpdate WaitForStep(int64_t step) {
    MutexLock lock(mu_);
    const auto is_of_step = [step](const StepUpdate& update) { return update.step.value() == step; };
    const auto made = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return std::find_if(updates_.begin(), updates_.end(), is_of_step);
    };
    while (failure_.ok() && made() == updates_.end()) changed_.Wait(mu_);
    EXPECT_OK(failure_);
    return made() == updates_.end() ? StepUpdate() : *made();
  }
  absl::Status WaitForFailure() {
    MutexLock lock(mu_);
    while (failure_.ok()) changed_.Wait(mu_);
    return failure_;
  }
  size_t WaitForBlobs(size_t count) {
    MutexLock lock(mu_);
    while (made_.size() < count) changed_.Wait(mu_);
    return made_.size();
  }
  std::vector<BlobId> made() {
    MutexLock lock(mu_);
    return made_;
  }

  // Masters and moments.
  std::string Bits(int64_t version) const {
    std::string bits;
    for (const BlobSpec& blob : model_.blobs) {
      std::vector<float> values(static_cast<size_t>(blob.num_elems));
      const auto append = [&] { bits.append(reinterpret_cast<const char*>(values.data()), values.size() * 4); };
      EXPECT_OK(store_->ReadMaster(blob.id, Version(version), 0, absl::MakeSpan(values)));
      append();
      for (int which = 0; !blob.frozen && which < store_->num_moments(); ++which) {
        values = ReadMoment(*store_, blob, which, 0, blob.num_elems);
        append();
      }
    }
    return bits;
  }

  double Norm(int64_t step, BlobId only = BlobId(-1)) const {
    double sum = 0;
    for (const BlobSpec& blob : model_.blobs) {
      if (blob.frozen || (only.value() >= 0 && blob.id != only)) continue;
      for (int64_t i = 0; i < blob.num_elems; ++i) {
        const double g = SumAt(step, {0, kVnodes}, blob.id, i);
        sum += g * g;
      }
    }
    return std::sqrt(sum);
  }

  static float SumAt(int64_t step, TreeNode node, BlobId blob, int64_t elem) {
    if (node.is_leaf()) return GradientAt(step, node.first, blob, elem);
    const int left = LeftLeaves(node.count);
    return SumAt(step, {node.first, left}, blob, elem) +
           SumAt(step, {node.first + left, node.count - left}, blob, elem);
  }

 private:
  const RunConfig run_;
  const ModelSpec model_;
  const std::unique_ptr<Store> store_;
  std::vector<ChunkId> chunks_;
  std::atomic<int> decided_ = 0;
  Mutex mu_;
  CondVar changed_;
  std::vector<BlobId> made_ ABSL_GUARDED_BY(mu_);
  std::vector<StepUpdate> updates_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<UpdateEngine> engine_;  // last: its threads use the above
};

inline std::string Train(const RunConfig& run, int threads, int steps) {
  Trainer trainer(run, threads);
  for (int step = 0; step < steps; ++step) {
    trainer.SubmitAll(step);
    trainer.WaitForStep(step);
  }
  return trainer.Bits(steps);
}

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_TESTING_H_
