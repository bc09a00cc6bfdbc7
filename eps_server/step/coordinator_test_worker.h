#ifndef EPS_SERVER_STEP_COORDINATOR_TEST_WORKER_H_
#define EPS_SERVER_STEP_COORDINATOR_TEST_WORKER_H_

// A worker for the coordinator's tests: it pulls every version that it needs, and pushes gradients that depend on them.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/schedule/reduction_tree.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/coordinator_test_run.h"
#include "gtest/gtest.h"

namespace eps::server {

inline constexpr int kNever = std::numeric_limits<int>::max();

class FakeWorker {
 public:
  // What it does from its first message on.
  struct Manners {
    bool holds_records = false;        // sends contributions, but no record until ReleaseRecords
    bool withholds_gradients = false;  // offers contributions, and sends records, but nothing that is admitted
    bool holds_evaluations = false;    // sends no record of an evaluation's vnodes until ReleaseEvaluations
    bool breaks_loss = false;          // sends records whose loss is no number
    bool breaks_gradients = false;     // sends gradients that are infinite
    bool hangs = false;                // sends nothing, until Kill
  };
  FakeWorker(TestRun& run, Manners manners) : FakeWorker(run, kNever, 0, nullptr, manners) {}
  // Dies, without a word, before it sends its `dies_at`th message (chunks and records).
  explicit FakeWorker(TestRun& run, int dies_at = kNever) : FakeWorker(run, dies_at, 0, nullptr, {}) {}
  // Each vnode takes it so many seconds of `clock`. It says that beside them it waited for versions, for much longer.
  FakeWorker(TestRun& run, int64_t vnode_seconds, FakeClock& clock)
      : FakeWorker(run, kNever, vnode_seconds, &clock, {}) {}
  ~FakeWorker() {
    channel_->Close(absl::CancelledError("the test is over"));
    thread_.join();
  }

  WorkerId id() const { return id_; }
  bool finished_ok() const { return channel_->finished_ok(); }
  bool run_may_go_on() const { return channel_->run_may_go_on(); }
  void Kill() { dead_ = true; }
  bool dead() const { return dead_; }
  // By step, from the first one that it computed.
  std::vector<size_t> vnode_counts() {
    MutexLock lock(counts_mu_);
    return vnode_counts_;
  }
  void HoldRecords() { holds_records_ = true; }  // as Manners, from now on
  void ReleaseRecords() { holds_records_ = false; }
  void ReleaseEvaluations() { holds_evaluations_ = false; }
  bool is_evaluating() const { return is_evaluating_; }

 private:
  FakeWorker(TestRun& run, int dies_at, int64_t vnode_seconds, FakeClock* clock, Manners manners)
      : run_(run),
        hangs_(manners.hangs),
        withholds_gradients_(manners.withholds_gradients),
        breaks_gradients_(manners.breaks_gradients),
        vnode_seconds_(vnode_seconds),
        clock_(clock),
        messages_left_(dies_at) {
    broken_loss_ = manners.breaks_loss;
    holds_records_ = manners.holds_records;
    holds_evaluations_ = manners.holds_evaluations;
    id_ = *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1 << 20});
    EXPECT_OK(run.coordinator->Connect(id_, channel_));
    EXPECT_OK(run.coordinator->Ready(id_, {}));
    thread_ = std::thread([this] { Loop(); });
  }
  class Channel : public WorkerChannel {
   public:
    void SendGroupOrder(const GroupOrder&) override {}  // this one forms none
    void SendAssignment(std::shared_ptr<const Assignment> assignment) override {
      MutexLock lock(mu_);
      assignments_.push_back(std::move(assignment));
      changed_.NotifyAll();
    }
    void SendFinish(FinishNotice notice) override {
      MutexLock lock(mu_);
      ok_ = notice.ok;
      run_may_go_on_ = notice.run_may_go_on;
      closed_ = true;
      changed_.NotifyAll();
    }
    void Close(absl::Status) override {
      MutexLock lock(mu_);
      closed_ = true;
      changed_.NotifyAll();
    }
    // Null: there is none.
    std::shared_ptr<const Assignment> Next() {
      MutexLock lock(mu_);
      if (assignments_.empty()) return nullptr;
      auto next = assignments_.front();
      assignments_.pop_front();
      return next;
    }
    bool closed() {
      MutexLock lock(mu_);
      return closed_;
    }
    bool finished_ok() {
      MutexLock lock(mu_);
      return ok_;
    }
    bool run_may_go_on() {
      MutexLock lock(mu_);
      return run_may_go_on_;
    }

   private:
    Mutex mu_;
    CondVar changed_;
    std::deque<std::shared_ptr<const Assignment>> assignments_ ABSL_GUARDED_BY(mu_);
    bool closed_ ABSL_GUARDED_BY(mu_) = false;
    bool ok_ ABSL_GUARDED_BY(mu_) = false;
    bool run_may_go_on_ ABSL_GUARDED_BY(mu_) = false;
  };

  // Answers to offers, which may come from any thread, also after the worker's death.
  struct Answers {
    Mutex mu;
    CondVar changed;
    std::deque<std::pair<ContributionKey, absl::StatusOr<Verdict>>> got ABSL_GUARDED_BY(mu);
    bool closed ABSL_GUARDED_BY(mu) = false;
  };

  void Loop() {
    // A contribution that was offered waits for its answer while the next assignment is computed:
    // otherwise a redo would wait for room that only the redo makes.
    while (!dead_ && !channel_->closed()) {
      const std::shared_ptr<const Assignment> assignment = channel_->Next();
      if (!(assignment != nullptr ? RunPass(*assignment) : SendAdmitted(/*may_wait=*/true))) break;
    }
    if (!dead_) return;
    std::deque<std::pair<ContributionKey, absl::StatusOr<Verdict>>> got;
    {
      MutexLock lock(answers_->mu);
      answers_->closed = true;
      got.swap(answers_->got);
    }
    for (const ContributionKey& key : withheld_) run_.coordinator->aggregator().Abandon(key);
    for (auto& [key, verdict] : got) {
      if (verdict.ok() && *verdict == Verdict::kAdmitted) run_.coordinator->aggregator().Abandon(key);
    }
    run_.coordinator->Disconnect(id_, absl::UnavailableError("killed"));
  }

  bool MaySend() {
    if (messages_left_-- <= 0) dead_ = true;
    while (hangs_ && !dead_ && !channel_->closed()) absl::SleepFor(absl::Milliseconds(1));
    return !dead_;
  }

  // False: dead, or the run is over.
  bool RunPass(const Assignment& assignment) {
    if (assignment.evaluation_round.has_value()) return Evaluate(assignment);
    loss_scales_[assignment.step.value()] = static_cast<float>(assignment.loss_scale);
    {
      MutexLock lock(counts_mu_);
      vnode_counts_.push_back(assignment.vnodes.size());
    }
    EXPECT_EQ(assignment.dropped, LayerDrop(run_.model, run_.config.layer_drop).DroppedIn(assignment.step));
    const auto is_dropped = [&](const LayerSpec& layer) {
      return std::binary_search(assignment.dropped.begin(), assignment.dropped.end(), layer.id);
    };
    for (const LayerSpec& layer : run_.model.layers) {
      if (is_dropped(layer)) continue;
      for (const BlobUse& use : layer.blobs) {
        if (!Pull(use.blob, ReadVersion(assignment.step))) return false;
      }
    }
    std::vector<int> held;
    for (const VnodeBatch& batch : assignment.vnodes) {
      held.push_back(batch.vnode);
      tokens_[{assignment.step, batch.vnode}] = {batch.tokens.begin(), batch.tokens.end()};
    }
    const int num_vnodes = run_.config.batch.virtual_nodes;
    // As a worker pushes: leaves for one or two vnodes, subtree sums from three.
    const std::vector<TreeNode> nodes = LargestSubtrees(held, num_vnodes, held.size() < 3 ? 1 : num_vnodes);
    for (auto layer = run_.model.layers.rbegin(); layer != run_.model.layers.rend(); ++layer) {
      if (is_dropped(*layer)) continue;
      for (const BlobUse& use : layer->blobs) {
        if (!Pull(use.blob, ReadVersion(assignment.step))) return false;
        if (run_.model.blob(use.blob).frozen) continue;
        for (const TreeNode node : nodes) {
          Offer(
              {assignment.step, use.blob, use.use, node, run_.model.blob(use.blob).all_chunks(), LeafDtype(node), -1});
        }
      }
      if (!SendAdmitted(/*may_wait=*/false)) return false;
    }
    return SendRecords(assignment);
  }

  bool Evaluate(const Assignment& assignment) {
    const Version version = ReadVersion(assignment.step);
    double weights = 0;  // of the version, so that another one would show
    for (const BlobSpec& blob : run_.model.blobs) {
      if (!Pull(blob.id, version)) return false;
      for (const std::byte byte : run_.store->Wire(blob.id, version)) weights += static_cast<double>(byte);
    }
    is_evaluating_ = true;
    while (holds_evaluations_ && !dead_ && !channel_->closed()) absl::SleepFor(absl::Milliseconds(1));
    is_evaluating_ = false;
    if (!MaySend()) return false;
    std::vector<VnodeRecord> records;
    for (const VnodeBatch& batch : assignment.vnodes) {
      const int64_t counted = CountedTokens(batch);
      const double loss = weights / static_cast<double>(7 + batch.vnode + 10 * *assignment.evaluation_round);
      records.push_back({.vnode = batch.vnode, .loss_sum = loss, .counted_tokens = counted, .correct = counted / 2});
    }
    EXPECT_OK(run_.coordinator->EvaluationDone(id_, version, *assignment.evaluation_round, records, {.seconds = 1}));
    return true;
  }

  bool Pull(BlobId blob, Version version) {
    struct Wait {
      Mutex mu;
      CondVar changed;
      bool done ABSL_GUARDED_BY(mu) = false;
      absl::Status status ABSL_GUARDED_BY(mu);
    };
    auto wait = std::make_shared<Wait>();
    run_.store->WhenPublished(blob, version, [wait](absl::Status status) {
      MutexLock lock(wait->mu);
      wait->done = true;
      wait->status = status;
      wait->changed.NotifyAll();
    });
    MutexLock lock(wait->mu);
    while (!wait->done && !dead_) wait->changed.WaitFor(wait->mu, std::chrono::milliseconds(5));
    return wait->done && wait->status.ok() && !dead_;
  }

  Dtype LeafDtype(TreeNode node) const { return node.is_leaf() ? run_.config.precision.gradients : Dtype::kF32; }

  void Offer(const ContributionKey& key) {
    run_.coordinator->aggregator().Offer(key, [answers = answers_, key, run = &run_](absl::StatusOr<Verdict> verdict) {
      const bool admitted = verdict.ok() && *verdict == Verdict::kAdmitted;
      {
        MutexLock lock(answers->mu);
        if (!answers->closed) {
          answers->got.emplace_back(key, std::move(verdict));
          answers->changed.NotifyAll();
          return;
        }
      }
      if (admitted) run->coordinator->aggregator().Abandon(key);
    });
  }

  // Sends what was admitted so far; false: dead, or the run is over.
  bool SendAdmitted(bool may_wait) {
    while (true) {
      std::pair<ContributionKey, absl::StatusOr<Verdict>> next;
      {
        MutexLock lock(answers_->mu);
        if (may_wait && answers_->got.empty()) answers_->changed.WaitFor(answers_->mu, std::chrono::milliseconds(1));
        if (dead_) return false;
        if (answers_->got.empty()) return true;
        next = std::move(answers_->got.front());
        answers_->got.pop_front();
      }
      may_wait = false;
      if (!next.second.ok()) return false;  // the run is over
      if (withholds_gradients_) {
        withheld_.push_back(next.first);
        continue;
      }
      if (*next.second == Verdict::kAdmitted && !Send(next.first)) return false;
    }
  }

  bool Send(const ContributionKey& key) {
    const BlobSpec& blob = run_.model.blob(key.blob);
    for (int64_t chunk = 0; chunk < blob.num_chunks(); ++chunk) {
      if (!MaySend()) {
        run_.coordinator->aggregator().Abandon(key);
        return false;
      }
      const auto outcome = run_.coordinator->aggregator().AddChunk(key, chunk, Payload(key, chunk));
      if (!outcome.ok()) return false;
      if (outcome->complete) return true;
    }
    ADD_FAILURE() << DebugString(key) << " is not complete after its last chunk";
    return false;
  }

  std::vector<std::byte> Payload(const ContributionKey& key, int64_t chunk) const {
    const int64_t count = run_.model.blob(key.blob).chunk_elems(chunk);
    const std::vector<float> sums = Sum(key, key.node, chunk * kChunkElems, count);
    std::vector<std::byte> payload(static_cast<size_t>(count * SizeOf(key.dtype)));
    for (size_t i = 0; i < sums.size(); ++i) {
      if (key.dtype == Dtype::kBf16) {
        reinterpret_cast<uint16_t*>(payload.data())[i] = ToBf16(sums[i]).bits;
      } else if (key.dtype == Dtype::kF16) {
        reinterpret_cast<uint16_t*>(payload.data())[i] = ToFp16(sums[i]).bits;
      } else {
        reinterpret_cast<float*>(payload.data())[i] = sums[i];
      }
    }
    return payload;
  }

  // Of `count` elements from `begin` on.
  std::vector<float> Sum(const ContributionKey& key, TreeNode node, int64_t begin, int64_t count) const {
    if (node.is_leaf()) return Gradients(key, node.first, begin, count);
    const int left = LeftLeaves(node.count);
    std::vector<float> sums = Sum(key, {node.first, left}, begin, count);
    const std::vector<float> right = Sum(key, {node.first + left, node.count - left}, begin, count);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += right[i];
    return sums;
  }

  // They depend on the weights of the step's own version: a wrong one would show in the bits.
  std::vector<float> Gradients(const ContributionKey& key, int vnode, int64_t begin, int64_t count) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (breaks_gradients_) return std::vector<float>(static_cast<size_t>(count), kInfinity);
    const TensorSpec& tensor = run_.model.blob(key.blob).tensors.front();
    const std::set<int32_t>* tokens = nullptr;
    if (key.use == 0 && tensor.role == TensorRole::kTokenTable) tokens = &tokens_.at({key.step, vnode});
    const std::byte* wire = run_.store->Wire(key.blob, ReadVersion(key.step)).data();
    const float loss_scale = loss_scales_.at(key.step.value());
    std::vector<float> gradients(static_cast<size_t>(count));
    for (int64_t elem = begin; elem < begin + count; ++elem) {
      // As an embedding does: nothing for rows of the token table that no token reads.
      if (tokens != nullptr && !tokens->contains(static_cast<int32_t>(elem / tensor.shape[1]))) continue;
      gradients[static_cast<size_t>(elem - begin)] =
          Rounded((Noise(key, vnode, elem) + 1e-3f * Weight(wire, elem)) * loss_scale);
    }
    return gradients;
  }
  static float Noise(const ContributionKey& key, int vnode, int64_t elem) {
    const uint64_t mixed =
        (static_cast<uint64_t>(key.step.value() * 31 + vnode * 7 + key.use) << 32 | static_cast<uint64_t>(elem)) *
        0x9E3779B97F4A7C15u;
    return static_cast<float>(static_cast<int64_t>(mixed >> 40) - (1 << 23)) * 0x1p-30f;
  }
  float Weight(const std::byte* wire, int64_t elem) const {
    switch (run_.config.precision.wire) {
      case Dtype::kF32:
        break;
      case Dtype::kBf16:
        return ToFloat(Bf16{reinterpret_cast<const uint16_t*>(wire)[elem]});
      case Dtype::kF16:
        return ToFloat(Fp16{reinterpret_cast<const uint16_t*>(wire)[elem]});
    }
    return reinterpret_cast<const float*>(wire)[elem];
  }
  float Rounded(float gradient) const {
    switch (run_.config.precision.gradients) {
      case Dtype::kF32:
        break;
      case Dtype::kBf16:
        return ToFloat(ToBf16(gradient));
      case Dtype::kF16:
        return ToFloat(ToFp16(gradient));
    }
    return gradient;
  }

  bool SendRecords(const Assignment& assignment) {
    while (holds_records_) {
      if (!SendAdmitted(/*may_wait=*/true)) return false;
    }
    if (!MaySend()) return false;
    std::vector<VnodeRecord> records;
    for (const VnodeBatch& batch : assignment.vnodes) {
      const double loss = broken_loss_ ? std::numeric_limits<double>::quiet_NaN()
                                       : 1.0 / static_cast<double>(3 + batch.vnode + assignment.step.value());
      records.push_back({batch.vnode, loss, CountedTokens(batch), true});
    }
    PassTiming timing{.seconds = 1, .wait_seconds = {{"pull", 0.25}}, .device_peak_bytes = 77};
    if (clock_ != nullptr) {
      const int64_t seconds = vnode_seconds_ * static_cast<int64_t>(assignment.vnodes.size());
      clock_->seconds += seconds;
      timing.wait_seconds["version"] = 30;
      timing.seconds = 30 + static_cast<double>(seconds);
    }
    EXPECT_OK(run_.coordinator->PassDone(id_, assignment.step, records, timing));
    return true;
  }

  TestRun& run_;
  WorkerId id_;
  const std::shared_ptr<Channel> channel_ = std::make_shared<Channel>();
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  std::atomic<bool> dead_ = false;
  std::atomic<bool> broken_loss_ = false;
  std::atomic<bool> holds_records_ = false;
  std::atomic<bool> holds_evaluations_ = false;
  std::atomic<bool> is_evaluating_ = false;
  const bool hangs_;
  const bool withholds_gradients_;
  const bool breaks_gradients_;
  const int64_t vnode_seconds_;
  FakeClock* const clock_;  // null: each pass says that it took a second
  Mutex counts_mu_;
  std::vector<size_t> vnode_counts_ ABSL_GUARDED_BY(counts_mu_);
  int messages_left_;
  std::vector<ContributionKey> withheld_;                       // that were admitted; of thread_
  std::map<int64_t, float> loss_scales_;                        // by step; of thread_
  std::map<std::pair<StepId, int>, std::set<int32_t>> tokens_;  // by step and vnode; of thread_
  std::thread thread_;
};

inline std::string Reference(const RunConfig& config) {
  TestRun run(config);
  FakeWorker worker(run);
  EXPECT_OK(run.coordinator->WaitUntilFinished());
  return run.Result(config.steps);
}

// In every way of clipping and dtype, and of keeping weights, in which a part of a step can be run again.
struct Mode {
  ClipMode clip;
  Dtype dtype;
  int wire_versions = 2;
};
class CoordinatorModeTest : public ::testing::TestWithParam<Mode> {
 protected:
  RunConfig Config() const {
    RunConfig config = SmallRun(GetParam().clip, GetParam().dtype);
    config.precision.wire_versions = GetParam().wire_versions;
    return config;
  }
};

inline auto AllModes() {
  return ::testing::Values(Mode{ClipMode::kExact, Dtype::kBf16}, Mode{ClipMode::kNone, Dtype::kF32},
                           Mode{ClipMode::kLagged, Dtype::kBf16}, Mode{ClipMode::kPerBlob, Dtype::kBf16},
                           Mode{ClipMode::kNone, Dtype::kF16}, Mode{ClipMode::kExact, Dtype::kF16},
                           Mode{ClipMode::kExact, Dtype::kBf16, /*wire_versions=*/1});
}

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_COORDINATOR_TEST_WORKER_H_
