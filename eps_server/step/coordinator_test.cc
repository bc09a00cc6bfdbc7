#include "eps_server/step/coordinator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/schedule/loss_scale.h"
#include "common/schedule/reduction_tree.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/data/step_data.h"
#include "eps_server/membership/membership.h"
#include "eps_server/membership/monotonic_clock.h"
#include "eps_server/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// Two blocks of two chunks each.
RunConfig SmallRun(ClipMode clip = ClipMode::kExact, Dtype dtype = Dtype::kBf16) {
  RunConfig run;
  run.model = {.num_layers = 2, .d_model = 160, .num_heads = 2, .context = 8, .vocab = 256};
  run.batch = {.virtual_nodes = 4, .micro_batches = 1, .micro_batch = 2};
  run.optimizer.peak_learning_rate = 1e-2;
  run.optimizer.weight_decay = 0.1;
  run.optimizer.clip = clip;
  run.optimizer.clip_norm = 0.5;
  run.precision = {.wire = dtype, .gradients = dtype};
  // What FakeWorker pushes overflows with it, and not with half of it: every second step is skipped.
  if (dtype == Dtype::kF16) run.precision.loss_scale = LossScaleRule{.first = 0x1p23, .growth_interval = 1};
  run.steps = 4;
  return run;
}

// Waits for `condition`, which another thread makes true; a test that hangs fails instead.
void WaitFor(const std::function<bool()>& condition) {
  for (int i = 0; i < 20000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_TRUE(condition());
}

// ---- a checkpointer in memory ----

struct Snapshot {
  RunState state;
  std::map<BlobId, std::vector<std::vector<float>>> blobs;  // master, then moments
};

class MemoryCheckpointer : public Checkpointer {
 public:
  explicit MemoryCheckpointer(const ModelSpec& model) : model_(model) {}

  absl::StatusOr<std::string> Write(const Store& store, const RunState& state, const Capture& capture) override {
    const std::vector<BlobId>& order = capture.order;
    {
      MutexLock lock(mu_);
      is_awaited_ = capture.is_awaited;
    }
    Snapshot snapshot{state, {}};
    for (size_t b = 0; b < order.size(); ++b) {
      WaitAt(b, capture);
      if (capture.is_cancelled()) return absl::CancelledError("no longer wanted");
      {
        MutexLock lock(mu_);
        if (!failure_.ok()) return fails_once_ ? std::exchange(failure_, absl::OkStatus()) : failure_;
      }
      std::vector<std::vector<float>>& tensors = snapshot.blobs[order[b]];
      const int num_moments = model_.blob(order[b]).frozen ? 0 : store.num_moments();
      for (int which = -1; which < num_moments; ++which) {
        std::vector<float>& values = tensors.emplace_back(static_cast<size_t>(model_.blob(order[b]).num_elems));
        if (which < 0) {
          store.ReadMaster(order[b], state.version, 0, absl::MakeSpan(values));
        } else {
          store.ReadMoment(order[b], which, 0, absl::MakeSpan(values));
        }
      }
      capture.captured(order[b]);
    }
    WaitAt(order.size(), capture);
    MutexLock lock(mu_);
    snapshots_[state.version.value()] = std::move(snapshot);
    latest_ = absl::StrCat("step-", state.version.value());
    return latest_;
  }
  absl::StatusOr<RunState> LoadLatest(Store&) override { return absl::UnimplementedError("not here"); }
  std::string LatestPath() const override {
    MutexLock lock(mu_);
    return latest_;
  }

  // The next writes stop before capturing blob `blob` of the order, or behind the last one, until Pass.
  void StopAt(size_t blob) {
    MutexLock lock(mu_);
    stop_at_ = static_cast<int>(blob);
  }
  void Pass() {
    MutexLock lock(mu_);
    stop_at_ = -1;
    changed_.NotifyAll();
  }
  bool stopped() {
    MutexLock lock(mu_);
    return stopped_;
  }
  // Of the newest write.
  bool is_awaited() {
    MutexLock lock(mu_);
    return is_awaited_ != nullptr && is_awaited_();
  }
  void FailWith(absl::Status status) {
    MutexLock lock(mu_);
    failure_ = status;
  }
  void FailOnceWith(absl::Status status) {
    MutexLock lock(mu_);
    failure_ = status;
    fails_once_ = true;
  }
  std::map<int64_t, Snapshot> snapshots() {
    MutexLock lock(mu_);
    return snapshots_;
  }

 private:
  void WaitAt(size_t blob, const Capture& capture) {
    while (!capture.is_cancelled()) {
      MutexLock lock(mu_);
      if (stop_at_ != static_cast<int>(blob)) return;
      stopped_ = true;
      changed_.WaitFor(mu_, std::chrono::milliseconds(1));
    }
  }
  const ModelSpec& model_;
  mutable Mutex mu_;
  CondVar changed_;
  int stop_at_ ABSL_GUARDED_BY(mu_) = -1;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::function<bool()> is_awaited_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool fails_once_ ABSL_GUARDED_BY(mu_) = false;
  std::map<int64_t, Snapshot> snapshots_ ABSL_GUARDED_BY(mu_);
  std::string latest_ ABSL_GUARDED_BY(mu_);
};

// ---- a run: data, store, coordinator ----

struct FakeClock {
  std::atomic<int64_t> seconds = 0;
  MonotonicClock clock() {
    return [this] { return absl::Seconds(seconds.load()); };
  }
};

class Reports : public StepObserver {
 public:
  void OnCommit(const StepReport& report) override {
    MutexLock lock(mu_);
    all_.push_back(report);
  }
  void OnEvaluation(const EvaluationReport& report) override {
    MutexLock lock(mu_);
    evaluations_.push_back(report);
    steps_before_.push_back(static_cast<int64_t>(all_.size()));
  }
  std::vector<StepReport> all() {
    MutexLock lock(mu_);
    return all_;
  }
  std::vector<EvaluationReport> evaluations() {
    MutexLock lock(mu_);
    return evaluations_;
  }
  // By evaluation: how many steps had been told.
  std::vector<int64_t> steps_before() {
    MutexLock lock(mu_);
    return steps_before_;
  }

 private:
  Mutex mu_;
  std::vector<StepReport> all_ ABSL_GUARDED_BY(mu_);
  std::vector<EvaluationReport> evaluations_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> steps_before_ ABSL_GUARDED_BY(mu_);
};

struct RunOptions {
  int expected_workers = 1;
  int threads = 2;
  int64_t window_bytes = 0;
  int64_t most_steps = 0;
  FakeClock* clock = nullptr;
  const Snapshot* resume = nullptr;
};

struct TestRun {
  explicit TestRun(const RunConfig& config, RunOptions options = {})
      : config(config), model(*BuildModel(config.model)) {
    EXPECT_OK(WriteFileAtomically(dir.File("text"), std::string(1000, 'x')));
    this->config.data.path = dir.File("text");
    EXPECT_OK(WriteFileAtomically(dir.File("evaluation"), std::string(90, 'y')));
    if (config.evaluation.is_on()) this->config.evaluation.path = dir.File("evaluation");
    store = *Store::Create(model, this->config);
    for (const BlobSpec& blob : model.blobs) Load(blob, options.resume);
    checkpointer = std::make_unique<MemoryCheckpointer>(model);
    Coordinator::Options made{.model = &model,
                              .run = &this->config,
                              .store = store.get(),
                              .checkpointer = checkpointer.get(),
                              .observers = {&reports},
                              .data = *StepData::Create(this->config),
                              .expected_workers = options.expected_workers,
                              .threads = options.threads,
                              .window_bytes = options.window_bytes,
                              .most_steps = options.most_steps};
    if (config.evaluation.is_on()) {
      made.evaluation_data = *EvaluationData::Open(this->config, *made.data, dir.File("evaluation_tokens"), 1);
    }
    made.resume.loss_scale = FirstLossScale(this->config.precision.loss_scale);
    if (options.resume != nullptr) made.resume = options.resume->state;
    if (options.clock != nullptr) made.clock = options.clock->clock();
    coordinator = *Coordinator::Create(std::move(made));
  }

  void Load(const BlobSpec& blob, const Snapshot* from) {
    if (from == nullptr) {
      std::vector<float> values(static_cast<size_t>(blob.num_elems));
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>((i * 7 + 3) % 101) - 0.5f;
      store->LoadMaster(blob.id, Version(0), 0, values);
      return;
    }
    const std::vector<std::vector<float>>& tensors = from->blobs.at(blob.id);
    store->LoadMaster(blob.id, from->state.version, 0, tensors[0]);
    for (size_t which = 1; which < tensors.size(); ++which) {
      store->LoadMoment(blob.id, static_cast<int>(which) - 1, 0, tensors[which]);
    }
  }

  // Masters of the end, as bits, and the losses.
  std::string Result(int64_t version) {
    std::string bits;
    for (const BlobSpec& blob : model.blobs) {
      std::vector<float> values(static_cast<size_t>(blob.num_elems));
      store->ReadMaster(blob.id, Version(version), 0, absl::MakeSpan(values));
      bits.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    }
    for (const double loss : coordinator->Losses()) bits.append(reinterpret_cast<const char*>(&loss), 8);
    return bits;
  }
  int64_t committed() { return coordinator->Status().step; }

  TempDir dir;
  RunConfig config;
  const ModelSpec model;
  std::unique_ptr<Store> store;
  std::unique_ptr<MemoryCheckpointer> checkpointer;
  Reports reports;
  std::unique_ptr<Coordinator> coordinator;
};

// ---- a worker: pulls every version that it needs, and pushes gradients that depend on them ----

constexpr int kNever = std::numeric_limits<int>::max();

class FakeWorker {
 public:
  // Dies, without a word, before it sends its `dies_at`th message (chunks and records).
  explicit FakeWorker(TestRun& run, int dies_at = kNever) : run_(run), messages_left_(dies_at) {
    id_ = *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1 << 20});
    EXPECT_OK(run.coordinator->Connect(id_, channel_));
    EXPECT_OK(run.coordinator->Ready(id_, {}));
    thread_ = std::thread([this] { Loop(); });
  }
  ~FakeWorker() {
    channel_->Close();
    thread_.join();
  }

  WorkerId id() const { return id_; }
  bool finished_ok() const { return channel_->finished_ok(); }
  void Kill() { dead_ = true; }
  bool dead() const { return dead_; }
  // Sends records whose loss is no number.
  void BreakLoss() { broken_loss_ = true; }
  // Sends contributions, but no record until ReleaseRecords.
  void HoldRecords() { holds_records_ = true; }
  void ReleaseRecords() { holds_records_ = false; }
  // Computes an evaluation's vnodes, but sends no record of them until ReleaseEvaluations.
  void HoldEvaluations() { holds_evaluations_ = true; }
  void ReleaseEvaluations() { holds_evaluations_ = false; }
  bool is_evaluating() const { return is_evaluating_; }

 private:
  class Channel : public WorkerChannel {
   public:
    void SendGroupOrder(const GroupOrder&) override {}  // this one forms none
    void SendAssignment(std::shared_ptr<const Assignment> assignment) override {
      MutexLock lock(mu_);
      assignments_.push_back(std::move(assignment));
      changed_.NotifyAll();
    }
    void SendFinish(bool ok, std::string) override {
      MutexLock lock(mu_);
      ok_ = ok;
      closed_ = true;
      changed_.NotifyAll();
    }
    void Close() {
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

   private:
    Mutex mu_;
    CondVar changed_;
    std::deque<std::shared_ptr<const Assignment>> assignments_ ABSL_GUARDED_BY(mu_);
    bool closed_ ABSL_GUARDED_BY(mu_) = false;
    bool ok_ ABSL_GUARDED_BY(mu_) = false;
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
    for (auto& [key, verdict] : got) {
      if (verdict.ok() && *verdict == Verdict::kAdmitted) run_.coordinator->aggregator().Abandon(key);
    }
    run_.coordinator->Disconnect(id_, absl::UnavailableError("killed"));
  }

  bool MaySend() {
    if (messages_left_-- <= 0) dead_ = true;
    return !dead_;
  }

  // False: dead, or the run is over.
  bool RunPass(const Assignment& assignment) {
    if (assignment.evaluation_round.has_value()) return Evaluate(assignment);
    loss_scales_[assignment.step.value()] = static_cast<float>(assignment.loss_scale);
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
    for (const VnodeBatch& batch : assignment.vnodes) held.push_back(batch.vnode);
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
    std::vector<std::byte> payload(static_cast<size_t>(count * SizeOf(key.dtype)));
    for (int64_t i = 0; i < count; ++i) {
      const float value = Sum(key, key.node, chunk * kChunkElems + i);
      if (key.dtype == Dtype::kBf16) {
        reinterpret_cast<uint16_t*>(payload.data())[i] = ToBf16(value).bits;
      } else if (key.dtype == Dtype::kF16) {
        reinterpret_cast<uint16_t*>(payload.data())[i] = ToFp16(value).bits;
      } else {
        reinterpret_cast<float*>(payload.data())[i] = value;
      }
    }
    return payload;
  }
  float Sum(const ContributionKey& key, TreeNode node, int64_t elem) const {
    if (!node.is_leaf()) {
      const int left = LeftLeaves(node.count);
      return Sum(key, {node.first, left}, elem) + Sum(key, {node.first + left, node.count - left}, elem);
    }
    // Depends on the weights of the step's own version: a wrong one would show in the bits.
    const absl::Span<const std::byte> wire = run_.store->Wire(key.blob, ReadVersion(key.step));
    const auto bits = [&] { return reinterpret_cast<const uint16_t*>(wire.data())[elem]; };
    const Dtype form = run_.config.precision.wire;
    const float weight = form == Dtype::kBf16  ? ToFloat(Bf16{bits()})
                         : form == Dtype::kF16 ? ToFloat(Fp16{bits()})
                                               : reinterpret_cast<const float*>(wire.data())[elem];
    const uint64_t mixed =
        (static_cast<uint64_t>(key.step.value() * 31 + node.first * 7 + key.use) << 32 | static_cast<uint64_t>(elem)) *
        0x9E3779B97F4A7C15u;
    const float noise = static_cast<float>(static_cast<int64_t>(mixed >> 40) - (1 << 23)) * 0x1p-30f;
    const float gradient = (noise + 1e-3f * weight) * loss_scales_.at(key.step.value());
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
    EXPECT_OK(run_.coordinator->PassDone(id_, assignment.step, records,
                                         {.seconds = 1, .wait_seconds = {{"pull", 0.25}}, .device_peak_bytes = 77}));
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
  int messages_left_;
  std::map<int64_t, float> loss_scales_;  // by step; of thread_
  std::thread thread_;
};

std::string Reference(const RunConfig& config) {
  TestRun run(config);
  FakeWorker worker(run);
  EXPECT_OK(run.coordinator->WaitUntilFinished());
  return run.Result(config.steps);
}

// ---- tests ----

struct Mode {
  ClipMode clip;
  Dtype dtype;
};
class CoordinatorModeTest : public ::testing::TestWithParam<Mode> {
 protected:
  RunConfig Config() const { return SmallRun(GetParam().clip, GetParam().dtype); }
};

TEST_P(CoordinatorModeTest, SameBitsForAnyNumberOfWorkersThreadsAndWindow) {
  const std::string want = Reference(Config());
  for (const int workers : {2, 3, 5}) {
    for (const int64_t window_bytes : {0, 1}) {
      TestRun run(Config(), {.expected_workers = workers, .threads = workers, .window_bytes = window_bytes});
      std::vector<std::unique_ptr<FakeWorker>> fleet;
      for (int i = 0; i < workers; ++i) fleet.push_back(std::make_unique<FakeWorker>(run));
      ASSERT_OK(run.coordinator->WaitUntilFinished());
      EXPECT_TRUE(run.Result(4) == want) << workers;
      for (const auto& worker : fleet) EXPECT_TRUE(worker->finished_ok());
    }
  }
}

TEST_P(CoordinatorModeTest, SameBitsWhenAWorkerDiesAtAnyPoint) {
  const std::string want = Reference(Config());
  // A worker with two of four vnodes sends 17 messages per step: 16 chunks, and its records among
  // or behind them. Every point of two steps in one mode; some in the others, to keep the test
  // short.
  const int stride = GetParam().clip == ClipMode::kExact ? 1 : 5;
  for (int dies_at = 0; dies_at <= 36; dies_at += stride) {
    TestRun run(Config(), {.expected_workers = 2});
    FakeWorker first(run, dies_at % 2 == 0 ? dies_at : kNever), second(run, dies_at % 2 == 0 ? kNever : dies_at);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    ASSERT_TRUE(run.Result(4) == want) << dies_at;
    EXPECT_TRUE(first.dead() || second.dead());
  }
}

// One layer wholly frozen, the first one of the relay among them, or blobs of both kinds in every layer.
std::vector<std::vector<std::string>> Freezes() {
  return {{"transformer.w*", "transformer.h.0.*"}, {"*.weight", "!transformer.wte.weight"}, {"*", "!*.ln_f.*"}};
}

TEST_P(CoordinatorModeTest, FrozenBlobsAreNobodysToPushAndEveryStepHasThemAsTheyWere) {
  for (const std::vector<std::string>& freeze : Freezes()) {
    RunConfig config = Config();
    config.model.freeze = freeze;
    config.checkpoint.every_steps = 2;
    std::string want;
    std::map<int64_t, Snapshot> snapshots;
    {
      TestRun run(config);
      std::map<BlobId, std::string> wire;
      for (const BlobSpec& blob : run.model.blobs) {
        const absl::Span<const std::byte> bytes = run.store->Wire(blob.id, Version(0));
        if (blob.frozen) wire[blob.id].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      FakeWorker worker(run);
      ASSERT_OK(run.coordinator->WaitUntilFinished());
      EXPECT_EQ(run.coordinator->Losses().size(), 4u);
      for (const BlobSpec& blob : run.model.blobs) EXPECT_EQ(run.store->published(blob.id), Version(4)) << blob.name;
      for (const auto& [blob, was] : wire) {
        const absl::Span<const std::byte> bytes = run.store->Wire(blob, Version(4));
        EXPECT_TRUE(was == absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      }
      want = run.Result(4);
      snapshots = run.checkpointer->snapshots();
    }
    for (const int dies_at : {0, 1, 5, 9}) {
      TestRun run(config, {.expected_workers = 2});
      FakeWorker first(run, dies_at), second(run);
      ASSERT_OK(run.coordinator->WaitUntilFinished());
      EXPECT_TRUE(run.Result(4) == want) << freeze[0] << ", dies at " << dies_at;
    }
    TestRun resumed(config, {.resume = &snapshots.at(2)});
    FakeWorker worker(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
    EXPECT_TRUE(resumed.Result(4) == want) << freeze[0];
  }
}

TEST_P(CoordinatorModeTest, WhatStepsDropAdvancesWithThemThroughLossesCheckpointsAndResumes) {
  RunConfig config = Config();
  config.model.num_layers = 3;
  config.model.init_seed = 4;
  config.layer_drop.share = 0.6;
  config.steps = 6;
  const ModelSpec model = *BuildModel(config.model);
  size_t dropped = 0;
  for (int step = 0; step < 6; ++step) dropped += LayerDrop(model, config.layer_drop).DroppedIn(StepId(step)).size();
  ASSERT_GT(dropped, 5u);
  const std::string want = Reference(config);
  config.checkpoint.every_steps = 2;
  std::map<int64_t, Snapshot> snapshots;
  for (const int stop_at : {-1, 0, 2, 4}) {  // the capture stops before a blob, and the steps wait for it
    TestRun run(config);
    if (stop_at >= 0) run.checkpointer->StopAt(static_cast<size_t>(stop_at));
    FakeWorker worker(run);
    if (stop_at >= 0) {
      WaitFor([&] { return run.checkpointer->stopped() && run.checkpointer->is_awaited(); });
      EXPECT_EQ(run.committed(), 2);
      run.checkpointer->Pass();
    }
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(6) == want) << stop_at;
    for (const BlobSpec& blob : run.model.blobs) EXPECT_EQ(run.store->published(blob.id), Version(6)) << blob.name;
    snapshots = run.checkpointer->snapshots();
    EXPECT_FALSE(snapshots.at(2).state.updates.empty());
    EXPECT_LT(snapshots.at(6).state.updates.at("h.2"), snapshots.at(6).state.updates.at("wte"));
    TestRun resumed(config, {.resume = &snapshots.at(2)});
    FakeWorker other(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
    EXPECT_TRUE(resumed.Result(6) == want) << "resumed, " << stop_at;
  }
  for (const int dies_at : {0, 1, 5, 9, 14}) {
    TestRun run(config, {.expected_workers = 2});
    FakeWorker first(run, dies_at), second(run);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(6) == want) << "dies at " << dies_at;
  }
}

TEST(CoordinatorTest, CountsOfBlobsThatTheModelDoesNotHaveAreRefused) {
  TestRun run(SmallRun());
  Snapshot snapshot;
  {
    FakeWorker worker(run);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    snapshot = run.checkpointer->snapshots().at(4);
  }
  EXPECT_THAT(snapshot.state.updates, ::testing::IsEmpty());  // each had all
  snapshot.state.updates = {{"h.7", 3}};
  EXPECT_THAT(Coordinator::Create({.model = &run.model,
                                   .run = &run.config,
                                   .store = run.store.get(),
                                   .checkpointer = run.checkpointer.get(),
                                   .data = *StepData::Create(run.config),
                                   .resume = snapshot.state}),
              StatusIs(absl::StatusCode::kDataLoss, "updates.wte: found nothing"));
}

TEST(CoordinatorTest, TheFirstStepWaitsForTheExpectedUntilFewerAre) {
  FakeClock clock;  // never moves: no timeout helps
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  FakeWorker only(run);
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  EXPECT_THAT(run.coordinator->ExpectWorkers(0), StatusIs(absl::StatusCode::kInvalidArgument, "expected_workers"));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  ASSERT_OK(run.coordinator->ExpectWorkers(1));
  EXPECT_OK(run.coordinator->WaitUntilFinished());
}

TEST_P(CoordinatorModeTest, SameBitsWhenAllDieAndOthersCome) {
  const std::string want = Reference(Config());
  TestRun run(Config(), {.expected_workers = 2});
  {
    FakeWorker first(run, 20), second(run, 25);
    WaitFor([&] { return first.dead() && second.dead(); });
    WaitFor([&] { return run.coordinator->Status().phase == RunPhase::kWaitingForWorkers; });
    EXPECT_EQ(run.coordinator->Status().tokens_per_second, 0);
    EXPECT_EQ(run.coordinator->Status().eta_seconds, -1);
  }
  FakeWorker third(run, 7);
  WaitFor([&] { return third.dead(); });
  FakeWorker fourth(run), fifth(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == want);
}

TEST_P(CoordinatorModeTest, CheckpointIsItsVersionThoughTrainingGoesOnAndResumeContinuesExactly) {
  RunConfig config = Config();
  config.steps = 6;
  const std::string want = Reference(config);
  config.checkpoint.every_steps = 2;
  std::map<int64_t, Snapshot> snapshots;
  {
    TestRun run(config);
    // The capture stops before its third blob: the step under way cannot commit, since that blob
    // may not be updated.
    run.checkpointer->StopAt(2);
    FakeWorker worker(run);
    WaitFor([&] { return run.checkpointer->stopped(); });
    // Who writes is told to hurry once an update waits, which is then all that the step waits for.
    WaitFor([&] { return run.checkpointer->is_awaited(); });
    EXPECT_EQ(run.committed(), 2);
    run.checkpointer->Pass();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(6) == want);
    const std::vector<StepReport> reports = run.reports.all();
    EXPECT_EQ(reports[1].held_seconds, 0);
    EXPECT_GT(reports[2].held_seconds, 0);
    EXPECT_GE(run.coordinator->Status().counts.update_held_seconds, reports[2].held_seconds);
    snapshots = run.checkpointer->snapshots();
  }
  ASSERT_EQ(snapshots.size(), 3u);
  for (const auto& [version, snapshot] : snapshots) {
    EXPECT_EQ(snapshot.state.version, Version(version));
    EXPECT_EQ(snapshot.state.losses.size(), static_cast<size_t>(version));
    EXPECT_EQ(snapshot.state.gradient_norms.size(), static_cast<size_t>(version));
    EXPECT_EQ(snapshot.state.tokens, version * config.tokens_per_step());
    TestRun resumed(config, {.resume = &snapshot});
    if (version == 6) {
      EXPECT_OK(resumed.coordinator->WaitUntilFinished());
      continue;
    }
    FakeWorker worker(resumed);
    ASSERT_OK(resumed.coordinator->WaitUntilFinished());
    EXPECT_TRUE(resumed.Result(6) == want) << version;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CoordinatorModeTest,
                         ::testing::Values(Mode{ClipMode::kExact, Dtype::kBf16}, Mode{ClipMode::kNone, Dtype::kF32},
                                           Mode{ClipMode::kLagged, Dtype::kBf16},
                                           Mode{ClipMode::kPerBlob, Dtype::kBf16}, Mode{ClipMode::kNone, Dtype::kF16},
                                           Mode{ClipMode::kExact, Dtype::kF16}));

TEST(CoordinatorTest, WorkersScaleByWhatTheStepsBeforeLeft) {
  TestRun run(SmallRun(ClipMode::kNone, Dtype::kF16));
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  std::vector<double> scales;
  std::vector<bool> skipped;
  for (const StepReport& report : run.reports.all()) {
    scales.push_back(report.loss_scale);
    skipped.push_back(report.skipped);
  }
  EXPECT_THAT(scales, ::testing::ElementsAre(0x1p23, 0x1p22, 0x1p23, 0x1p22));
  EXPECT_THAT(skipped, ::testing::ElementsAre(true, false, true, false));
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.skipped_steps, 2);
  EXPECT_EQ(status.loss_scale, 0x1p23);
  EXPECT_EQ(run.checkpointer->snapshots().at(4).state.loss_scale, LossScale{0x1p23});
}

TEST(CoordinatorTest, AStepThatWaitsTooLongIsCounted) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  FakeWorker first(run);
  first.HoldRecords();
  FakeWorker second(run);
  WaitFor([&] { return run.coordinator->Status().counts.passes == 1; });  // the second one's
  EXPECT_EQ(run.coordinator->Status().counts.step_waits, 0);
  for (; clock.seconds < 65; clock.seconds += 5) {
    EXPECT_OK(run.coordinator->Heartbeat(first.id()));
    EXPECT_OK(run.coordinator->Heartbeat(second.id()));
  }
  WaitFor([&] { return run.coordinator->Status().counts.step_waits == 1; });
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.step_age_seconds, 65);
  EXPECT_EQ(status.step_wait_cause, "compute");
  EXPECT_EQ(status.step_wait_seconds, 65);
  EXPECT_EQ(status.blobs, static_cast<int64_t>(run.model.blobs.size()));
  EXPECT_EQ(status.workers[0].silent_for, absl::Seconds(5));
  first.ReleaseRecords();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().counts.step_waits, 1);
  EXPECT_EQ(run.coordinator->Status().step_wait_cause, "");
}

TEST(CoordinatorTest, CountsWhatHappened) {
  TestRun run(SmallRun(), {.expected_workers = 2});
  FakeWorker first(run, 5), second(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.counts.workers_attached, 2);
  EXPECT_EQ(status.counts.workers_lost, 1);
  EXPECT_GT(status.counts.vnodes_redone, 0);
  EXPECT_GT(status.counts.passes, 0);
  EXPECT_EQ(status.counts.versions_published, 4 * static_cast<int64_t>(run.model.blobs.size()));
  int64_t num_elems = 0;
  for (const BlobSpec& blob : run.model.blobs) num_elems += blob.num_elems;
  EXPECT_EQ(status.counts.updated_elems, 4 * num_elems);
  EXPECT_GT(status.counts.update_moved_bytes, 0);
  EXPECT_GT(status.counts.update_busy_seconds, 0);
  EXPECT_EQ(status.blobs_pending, 0);
  EXPECT_EQ(status.checkpoint_step, 4);
  EXPECT_EQ(status.checkpoints_written, 1);
  EXPECT_EQ(status.loss_curve.size(), 4u);
}

TEST(CoordinatorTest, ReportsEachStepOnceAndInOrder) {
  TestRun run(SmallRun());
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const std::vector<StepReport> reports = run.reports.all();
  ASSERT_EQ(reports.size(), 4u);
  for (int64_t s = 0; s < 4; ++s) {
    const StepReport& report = reports[s];
    EXPECT_EQ(report.step, StepId(s));
    double loss = 0;
    for (int v = 0; v < 4; ++v) loss += 1.0 / static_cast<double>(3 + v + s);
    EXPECT_DOUBLE_EQ(report.loss, loss / 64);  // 4 vnodes of 2 sequences of 8 tokens
    EXPECT_EQ(report.tokens, 64);
    EXPECT_GT(report.gradient_norm, 0);
    EXPECT_EQ(report.learning_rate, 1e-2);
    EXPECT_EQ(report.wait_fraction.at("pull"), 0.25);
    EXPECT_EQ(report.device_peak_bytes, 77);
    EXPECT_EQ(report.workers, 1);
  }
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.phase, RunPhase::kFinished);
  EXPECT_EQ(status.step, 4);
  EXPECT_EQ(status.tokens, 256);
  EXPECT_EQ(run.coordinator->Losses().size(), 4u);
  EXPECT_EQ(status.newest_checkpoint, "step-4");
  EXPECT_EQ(status.eta_seconds, 0);
  EXPECT_GT(status.resident_bytes, 0);
  EXPECT_THAT(run.coordinator->Attach({.device_name = "cpu", .device_cap_bytes = 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "the run is over"));
}

TEST(CoordinatorTest, FirstLayersNextVersionStaysBehindTheGate) {
  const RunConfig config = SmallRun(ClipMode::kNone);
  TestRun run(config, {.expected_workers = 2});
  FakeWorker first(run);
  first.HoldRecords();
  FakeWorker second(run);
  // Every contribution is in and every blob is made, but the first worker's records are missing: it may still be lost,
  // and its vnodes run again with version 0.
  const auto is_out = [&](const BlobSpec& blob) { return run.store->published(blob.id) == Version(1); };
  const auto is_first_layers = [&](const BlobSpec& blob) { return blob.uses.front() == LayerId(0); };
  const auto& blobs = run.model.blobs;
  WaitFor([&] {
    return std::all_of(blobs.begin(), blobs.end(),
                       [&](const BlobSpec& blob) { return is_first_layers(blob) || is_out(blob); }) &&
           run.coordinator->aggregator().window_used_bytes() == 0;
  });
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_TRUE(std::none_of(blobs.begin(), blobs.end(),
                           [&](const BlobSpec& blob) { return is_first_layers(blob) && is_out(blob); }));
  EXPECT_EQ(run.committed(), 0);
  first.ReleaseRecords();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == Reference(config));
}

TEST(CoordinatorTest, VnodesWithoutARecordAreRedoneThoughTheirContributionsAreIn) {
  const RunConfig config = SmallRun(ClipMode::kNone);
  TestRun run(config, {.expected_workers = 2});
  FakeWorker first(run), second(run, 16);  // dies before its records
  WaitFor([&] { return second.dead(); });
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(run.Result(4) == Reference(config));
}

// A worker of which the test plays every part.
class PlayedWorker {
 public:
  PlayedWorker(TestRun& run, std::string group_kind) : run_(run) {
    id = *run.coordinator->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1 << 20});
    EXPECT_OK(run.coordinator->Connect(id, told_));
    EXPECT_OK(run.coordinator->Ready(id, {.group_kind = std::move(group_kind)}));
  }
  // The next that was told. Waits for it.
  GroupOrder NextOrder() {
    WaitFor([&] { return told_->NumOrders() > orders_seen_; });
    return told_->Order(orders_seen_++);
  }
  std::shared_ptr<const Assignment> NextAssignment() {
    WaitFor([&] { return told_->NumAssignments() > assignments_seen_; });
    return told_->AssignmentAt(assignments_seen_++);
  }
  bool HasAssignment() { return told_->NumAssignments() > assignments_seen_; }
  void Report(GroupReport::Kind kind, uint64_t group, std::string text = "") {
    EXPECT_OK(run_.coordinator->ReportGroup(id, {.kind = kind, .group = group, .text = std::move(text)}));
  }

  WorkerId id;

 private:
  class Told : public WorkerChannel {
   public:
    void SendAssignment(std::shared_ptr<const Assignment> assignment) override {
      MutexLock lock(mu_);
      assignments_.push_back(std::move(assignment));
    }
    void SendGroupOrder(const GroupOrder& order) override {
      MutexLock lock(mu_);
      orders_.push_back(order);
    }
    void SendFinish(bool, std::string) override {}
    size_t NumOrders() {
      MutexLock lock(mu_);
      return orders_.size();
    }
    GroupOrder Order(size_t index) {
      MutexLock lock(mu_);
      return orders_.at(index);
    }
    size_t NumAssignments() {
      MutexLock lock(mu_);
      return assignments_.size();
    }
    std::shared_ptr<const Assignment> AssignmentAt(size_t index) {
      MutexLock lock(mu_);
      return assignments_.at(index);
    }

   private:
    Mutex mu_;
    std::vector<GroupOrder> orders_ ABSL_GUARDED_BY(mu_);
    std::vector<std::shared_ptr<const Assignment>> assignments_ ABSL_GUARDED_BY(mu_);
  };

  TestRun& run_;
  std::shared_ptr<Told> told_ = std::make_shared<Told>();
  size_t orders_seen_ = 0, assignments_seen_ = 0;
};

std::vector<int> VnodesOf(const Assignment& assignment) {
  std::vector<int> vnodes;
  for (const VnodeBatch& batch : assignment.vnodes) vnodes.push_back(batch.vnode);
  return vnodes;
}

// Forms the group that the coordinator asks for, all the way.
uint64_t FormGroup(PlayedWorker& first, PlayedWorker& second) {
  const GroupOrder found = first.NextOrder();
  EXPECT_EQ(found.kind, GroupOrder::Kind::kFound);
  EXPECT_EQ(found.size, 2);
  EXPECT_FALSE(first.HasAssignment()) << "the step waits for its group";
  first.Report(GroupReport::Kind::kFounded, found.group, "T");
  const GroupOrder join = second.NextOrder();
  EXPECT_EQ(join.kind, GroupOrder::Kind::kJoin);
  EXPECT_EQ(join.token, "T");
  EXPECT_EQ(join.rank, 1);
  first.Report(GroupReport::Kind::kJoined, found.group);
  second.Report(GroupReport::Kind::kJoined, found.group);
  return found.group;
}

TEST(CoordinatorTest, AStepIsGivenToItsGroupAndAnewToEachAloneWhenAMemberIsLost) {
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2});
  PlayedWorker first(run, "k"), second(run, "k");
  const uint64_t group = FormGroup(first, second);
  const auto of_first = first.NextAssignment(), of_second = second.NextAssignment();
  const std::vector<std::vector<int>> shares = {VnodesOf(*of_first), VnodesOf(*of_second)};
  EXPECT_EQ(of_first->group, (GroupVnodes{.group = group, .rank = 0, .vnodes = shares}));
  EXPECT_EQ(of_second->group, (GroupVnodes{.group = group, .rank = 1, .vnodes = shares}));

  run.coordinator->Disconnect(second.id, absl::UnavailableError("it was killed"));
  const GroupOrder end = first.NextOrder();
  EXPECT_EQ(end.kind, GroupOrder::Kind::kEnd);
  EXPECT_EQ(end.group, group);
  const auto anew = first.NextAssignment();
  EXPECT_FALSE(anew->group.has_value());
  EXPECT_EQ(anew->step, of_first->step);
  EXPECT_EQ(VnodesOf(*anew), (std::vector<int>{0, 1, 2, 3})) << "its own as well: parts of them were with the other";
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 4);
}

TEST(CoordinatorTest, AMemberThatSaysThatItsGroupIsOverKeepsItsPlace) {
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2});
  PlayedWorker first(run, "k"), second(run, "k");
  const uint64_t group = FormGroup(first, second);
  const auto of_first = first.NextAssignment(), of_second = second.NextAssignment();
  second.Report(GroupReport::Kind::kFailed, group, "a broken link");
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kEnd);
  first.Report(GroupReport::Kind::kFailed, group, "it too");  // nothing more comes of it
  for (PlayedWorker* worker : {&first, &second}) {
    const auto anew = worker->NextAssignment();
    EXPECT_FALSE(anew->group.has_value());
    EXPECT_EQ(VnodesOf(*anew), VnodesOf(worker == &first ? *of_first : *of_second));
  }
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 4);
  EXPECT_EQ(run.coordinator->Status().counts.workers_lost, 0);
}

TEST(CoordinatorTest, AGroupThatDoesNotComeAboutHoldsAStepUpForSecondsAlone) {
  FakeClock clock;
  RunConfig config = SmallRun();
  config.relay.group_members = 2;
  TestRun run(config, {.expected_workers = 2, .clock = &clock});
  PlayedWorker first(run, "k"), second(run, "k"), other(run, "");
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kFound);  // and says nothing
  clock.seconds = 8;
  for (PlayedWorker* worker : {&first, &second, &other}) EXPECT_OK(run.coordinator->Heartbeat(worker->id));
  EXPECT_FALSE(other.HasAssignment());
  clock.seconds = 15;
  EXPECT_EQ(first.NextOrder().kind, GroupOrder::Kind::kEnd);
  for (PlayedWorker* worker : {&first, &second, &other}) {
    EXPECT_FALSE(worker->NextAssignment()->group.has_value());
  }
}

TEST(CoordinatorTest, LeaseRunsOutAndOthersDoTheWork) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  // A worker that attaches and never says anything again.
  class Silent : public WorkerChannel {
   public:
    void SendAssignment(std::shared_ptr<const Assignment> assignment) override { got = assignment->vnodes.size(); }
    void SendGroupOrder(const GroupOrder&) override {}
    void SendFinish(bool ok, std::string why) override {
      EXPECT_FALSE(ok);
      EXPECT_EQ(why, "not heard of for 10s");
      finished = true;
    }
    std::atomic<size_t> got = 0;
    std::atomic<bool> finished = false;
  };
  const auto silent = std::make_shared<Silent>();
  const WorkerId id = *run.coordinator->Attach({.device_name = "cpu", .device_cap_bytes = 1});
  ASSERT_OK(run.coordinator->Connect(id, silent));
  ASSERT_OK(run.coordinator->Ready(id, {}));
  FakeWorker worker(run);
  WaitFor([&] { return silent->got == 2u; });
  clock.seconds = 6;
  EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
  absl::SleepFor(absl::Milliseconds(120));
  EXPECT_EQ(run.committed(), 0);
  EXPECT_FALSE(silent->finished);
  clock.seconds = 11;
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_TRUE(silent->finished);
  EXPECT_THAT(run.coordinator->Heartbeat(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(run.Result(4) == Reference(SmallRun()));
}

TEST(CoordinatorTest, WaitsForTheExpectedWorkersOrItsPatience) {
  FakeClock clock;
  TestRun run(SmallRun(), {.expected_workers = 2, .clock = &clock});
  FakeWorker worker(run);
  absl::SleepFor(absl::Milliseconds(80));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  for (; clock.seconds < 60; clock.seconds += 5) EXPECT_OK(run.coordinator->Heartbeat(worker.id()));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
}

TEST(CoordinatorTest, StopEndsAfterTheStepInProgressWithItsCheckpoint) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 2; });
  ASSERT_OK_AND_ASSIGN(const int64_t last, run.coordinator->RequestStop("test"));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.committed(), last);
  EXPECT_EQ(run.checkpointer->snapshots().count(last), 1u);
  EXPECT_TRUE(worker.finished_ok());
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFinishing);  // its work is not done
  // Constant schedule: the same as a run of that length.
  config.steps = last;
  EXPECT_TRUE(run.Result(last) == Reference(config));
  EXPECT_EQ(*run.coordinator->RequestStop("again"), last);
}

TEST(CoordinatorTest, WithoutALastCheckpointTheRunEndsWithTheSameBitsAndLeavesNone) {
  RunConfig config = SmallRun();
  config.checkpoint.last = false;
  TestRun run(config);
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.committed(), config.steps);
  EXPECT_TRUE(worker.finished_ok());
  EXPECT_TRUE(run.checkpointer->snapshots().empty());
  EXPECT_EQ(run.coordinator->Status().newest_checkpoint, "");
  EXPECT_TRUE(run.Result(config.steps) == Reference(config));
}

TEST(CoordinatorTest, ARunThatEndsBeforeItsLastStepHasTheStepsOfTheWholeRun) {
  RunConfig config = SmallRun();
  config.optimizer.decay = ScheduleDecay::kLinear;
  TestRun whole(config), part(config, {.most_steps = 2});
  FakeWorker worker_of_whole(whole), worker_of_part(part);
  ASSERT_OK(whole.coordinator->WaitUntilFinished());
  ASSERT_OK(part.coordinator->WaitUntilFinished());
  EXPECT_TRUE(worker_of_part.finished_ok());
  EXPECT_EQ(part.committed(), 2);
  ASSERT_EQ(part.reports.all().size(), 2u);
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(part.reports.all()[s].learning_rate, whole.reports.all()[s].learning_rate);
    EXPECT_EQ(part.reports.all()[s].gradient_norm, whole.reports.all()[s].gradient_norm);
  }
}

TEST(CoordinatorTest, WithoutALastCheckpointTheEndWaitsForTheOneThatIsBeingWritten) {
  RunConfig config = SmallRun();
  config.checkpoint = {.every_steps = 3, .last = false};
  TestRun run(config);
  run.checkpointer->StopAt(run.model.blobs.size());  // all are captured: no update waits
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() == config.steps && run.checkpointer->stopped(); });
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFinishing);
  run.checkpointer->Pass();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.coordinator->Status().newest_checkpoint, "step-3");
  EXPECT_EQ(run.checkpointer->snapshots().size(), 1u);
}

TEST(CoordinatorTest, AStoppedRunLeavesACheckpointWhateverItsLastStepWould) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  config.checkpoint.last = false;
  TestRun run(config);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 2; });
  ASSERT_OK_AND_ASSIGN(const int64_t last, run.coordinator->RequestStop("test"));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.checkpointer->snapshots().count(last), 1u);
}

TEST(CoordinatorTest, StopWithoutAnybodyToFinishAStepThatHasUpdatedWeightsFails) {
  TestRun run(SmallRun(ClipMode::kNone));
  FakeWorker worker(run);
  worker.HoldRecords();  // all its contributions come, and so do the updates
  WaitFor([&] { return run.coordinator->Status().counts.updated_elems > 0; });
  worker.Kill();
  WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
  EXPECT_THAT(run.coordinator->RequestStop("test"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "no worker is left to finish step 0"));
  EXPECT_THAT(run.coordinator->WaitUntilFinished(),
              StatusIs(absl::StatusCode::kUnavailable, "no worker is left to finish step 0"));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFailed);
}

TEST(CoordinatorTest, StopWithoutAnybodyEndsBeforeAStepInWhichNothingWasUpdated) {
  RunConfig config = SmallRun(ClipMode::kExact);
  const std::string want = Reference(config);
  Snapshot snapshot;
  int64_t committed = 0;
  {
    TestRun run(config);
    FakeWorker worker(run, 20);  // dies in the middle of a step after the first
    WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
    committed = run.committed();
    ASSERT_GT(committed, 0);
    ASSERT_LT(committed, config.steps);
    EXPECT_EQ(*run.coordinator->RequestStop("test"), committed);
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_EQ(run.committed(), committed);
    snapshot = run.checkpointer->snapshots().at(committed);
  }
  TestRun resumed(config, {.resume = &snapshot});
  FakeWorker worker(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  EXPECT_TRUE(resumed.Result(config.steps) == want);
}

TEST(CoordinatorTest, DataThatCannotBeReadAnyMoreEndsTheRunWithACheckpointOfAllThatWasDone) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 2; });
  ASSERT_EQ(truncate(run.config.data.path.c_str(), 0), 0);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kDataLoss, "text\" ends at byte"));
  EXPECT_FALSE(worker.finished_ok());
  const int64_t last = run.committed();
  EXPECT_EQ(run.checkpointer->snapshots().count(last), 1u);
  config.steps = last;
  EXPECT_TRUE(run.Result(last) == Reference(config));
}

TEST(CoordinatorTest, DataThatCannotBeReadIsTheReasonThoughTheLastCheckpointFailsToo) {
  TestRun run(SmallRun());
  run.checkpointer->FailWith(absl::UnavailableError("the disk is gone"));
  ASSERT_EQ(truncate(run.config.data.path.c_str(), 0), 0);
  FakeWorker worker(run);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kDataLoss, "text\" ends at byte"));
  EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFailed);
}

TEST(CoordinatorTest, StopBeforeAnyStepLeavesACheckpointOfTheStart) {
  TestRun run(SmallRun());
  EXPECT_EQ(*run.coordinator->RequestStop("test"), 0);
  EXPECT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.checkpointer->snapshots().count(0), 1u);
}

TEST(CoordinatorTest, CheckpointsOnRequest) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  const auto request = [&] {
    auto path = std::make_shared<std::string>();
    auto done = std::make_shared<std::atomic<bool>>(false);
    run.coordinator->RequestCheckpoint([path, done](absl::StatusOr<std::string> got) {
      EXPECT_OK(got);
      *path = *got;
      *done = true;
    });
    WaitFor([&] { return done->load(); });
    return *path;
  };
  EXPECT_EQ(request(), "step-0");  // nothing is in progress
  EXPECT_EQ(request(), "step-0");  // no second write
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() >= 1; });
  const std::string path = request();
  EXPECT_NE(path, "step-0");
  EXPECT_TRUE(path == run.coordinator->Status().newest_checkpoint || run.committed() > 1);
  ASSERT_OK(run.coordinator->RequestStop("test"));
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(request(), run.coordinator->Status().newest_checkpoint);
}

TEST(CoordinatorTest, WhoWritesIsToldToHurryForTheEndOfTheRun) {
  TestRun run(SmallRun());
  run.checkpointer->StopAt(0);
  FakeWorker worker(run);
  WaitFor([&] { return run.committed() == 4 && run.checkpointer->stopped(); });
  EXPECT_TRUE(run.checkpointer->is_awaited());
  run.checkpointer->Pass();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
}

TEST(CoordinatorTest, WhoWritesIsToldToHurryForWhoAsked) {
  RunConfig config = SmallRun();
  config.steps = 1000000;
  TestRun run(config);
  run.checkpointer->StopAt(0);
  std::atomic<bool> answered = false;
  run.coordinator->RequestCheckpoint([&](const absl::StatusOr<std::string>&) { answered = true; });
  WaitFor([&] { return run.checkpointer->stopped(); });
  EXPECT_TRUE(run.checkpointer->is_awaited());
  run.checkpointer->Pass();
  WaitFor([&] { return answered.load(); });
}

TEST(CoordinatorTest, TheEndOfAFailedRunCancelsTheCheckpointThatIsBeingWritten) {
  TestRun run(SmallRun());
  run.checkpointer->StopAt(1);  // for good
  FakeWorker worker(run);
  WaitFor([&] { return run.checkpointer->stopped(); });
  run.coordinator->Fail(absl::AbortedError("a second signal"));
  EXPECT_EQ(run.coordinator->WaitUntilFinished().code(), absl::StatusCode::kAborted);
  run.coordinator.reset();
  EXPECT_TRUE(run.checkpointer->snapshots().empty());
}

TEST(CoordinatorTest, FailedCheckpointInMidRunIsSurvivedTheLastOneIsNot) {
  RunConfig config = SmallRun();
  config.checkpoint.every_steps = 1;
  TestRun run(config);
  run.checkpointer->FailWith(absl::ResourceExhaustedError("disk full"));
  FakeWorker worker(run);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(),
              StatusIs(absl::StatusCode::kResourceExhausted, "the last checkpoint: disk full"));
  EXPECT_EQ(run.committed(), 4);
  EXPECT_FALSE(worker.finished_ok());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.checkpoint_failures, 4);
  EXPECT_EQ(status.checkpoints_written, 0);
  EXPECT_EQ(status.checkpoint_error, "disk full");
}

TEST(CoordinatorTest, AfterAFailedCheckpointTheNextOneIsWrittenAndTheRunEndsWell) {
  RunConfig config = SmallRun();
  config.checkpoint.every_steps = 1;
  TestRun run(config);
  run.checkpointer->FailOnceWith(absl::ResourceExhaustedError("disk full"));
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  const RunStatus status = run.coordinator->Status();
  EXPECT_EQ(status.checkpoint_failures, 1);
  EXPECT_EQ(status.checkpoints_written, 3);
  EXPECT_EQ(status.checkpoint_error, "");
  EXPECT_EQ(status.newest_checkpoint, "step-4");
}

TEST(CoordinatorTest, LossThatIsNotFiniteEndsAnEagerRun) {
  TestRun run(SmallRun(ClipMode::kNone));
  FakeWorker worker(run);
  worker.BreakLoss();
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kOutOfRange, "the loss of vnode"));
  EXPECT_THAT(run.coordinator->Status().failure, ::testing::HasSubstr("is not finite"));
}

TEST(CoordinatorTest, ChoicesThatCameFirstHoldForTheirDeviceModelThroughCheckpointsAndResumes) {
  RunConfig config = SmallRun();
  config.checkpoint.every_steps = 2;
  const Choices first = {{"product", "1"}}, second = {{"product", "2"}};
  TestRun run(config);
  const auto attach = [](TestRun& to, const std::string& model) {
    return to.coordinator->Attach({.device_name = "cuda:0", .device_model = model, .device_cap_bytes = 1}).value();
  };
  EXPECT_TRUE(run.coordinator->HeldChoices("X").empty());
  const WorkerId x = attach(run, "X"), another_x = attach(run, "X"), y = attach(run, "Y");
  EXPECT_THAT(run.coordinator->OfferChoices(x, first), IsOkAndHolds(first));
  run.coordinator->Disconnect(x, absl::UnavailableError("killed"));  // what it chose stays
  EXPECT_THAT(run.coordinator->OfferChoices(another_x, second), IsOkAndHolds(first));
  EXPECT_THAT(run.coordinator->OfferChoices(y, second), IsOkAndHolds(second));
  EXPECT_THAT(run.coordinator->OfferChoices(y, {}), StatusIs(absl::StatusCode::kInvalidArgument, "choices: none"));
  EXPECT_THAT(run.coordinator->OfferChoices(x, first), StatusIs(absl::StatusCode::kNotFound, "worker_id"));
  EXPECT_EQ(run.coordinator->HeldChoices("X"), first);
  run.coordinator->Disconnect(another_x, absl::OkStatus());
  run.coordinator->Disconnect(y, absl::OkStatus());
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());

  const std::map<int64_t, Snapshot> snapshots = run.checkpointer->snapshots();
  const std::map<std::string, Choices> all = {{"X", first}, {"Y", second}};
  EXPECT_EQ(snapshots.at(2).state.choices, all);
  EXPECT_EQ(snapshots.at(4).state.choices, all);
  TestRun resumed(config, {.resume = &snapshots.at(2)});
  EXPECT_EQ(resumed.coordinator->HeldChoices("X"), first);
  EXPECT_THAT(resumed.coordinator->OfferChoices(attach(resumed, "X"), second), IsOkAndHolds(first));
  FakeWorker other(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  EXPECT_EQ(resumed.checkpointer->snapshots().at(4).state.choices, all);
}

TEST(CoordinatorTest, NonsenseFromAWorkerIsRefusedByField) {
  TestRun run(SmallRun());
  const WorkerId id = *run.coordinator->Attach({.device_name = "cpu", .device_cap_bytes = 1});
  EXPECT_THAT(run.coordinator->PassDone(id, StepId(0), {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.step: 0"));
  EXPECT_THAT(run.coordinator->PassDone(id, StepId(-1), {}, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(run.coordinator->PassDone(WorkerId(99), StepId(0), {}, {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(run.coordinator->Ready(id, {}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(run.coordinator->Attach({.device_name = "cpu"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "device_cap_bytes"));
  run.coordinator->Disconnect(WorkerId(99), absl::OkStatus());
  run.coordinator->Disconnect(id, absl::OkStatus());
}

TEST(CoordinatorTest, FailTellsEverybody) {
  TestRun run(SmallRun());
  run.coordinator->Fail(absl::InternalError("boom"));
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kInternal, "boom"));
  absl::Status pull;
  run.store->WhenPublished(BlobId(0), Version(1), [&](absl::Status status) { pull = status; });
  EXPECT_THAT(pull, StatusIs(absl::StatusCode::kAborted, "boom"));
  run.coordinator->RequestCheckpoint([](absl::StatusOr<std::string> path) {
    EXPECT_THAT(path, StatusIs(absl::StatusCode::kFailedPrecondition, "boom"));
  });
}

// ---- evaluations: 11 samples, of which a round takes 8 ----

RunConfig EvaluatedRun(RunConfig config = SmallRun()) {
  config.evaluation.every_steps = 3;
  return config;
}

// What a run of one worker finds.
std::vector<EvaluationReport> ReferenceEvaluations(const RunConfig& config) {
  TestRun run(config);
  FakeWorker worker(run);
  EXPECT_OK(run.coordinator->WaitUntilFinished());
  return run.reports.evaluations();
}

void ExpectSame(const std::vector<EvaluationReport>& found, const std::vector<EvaluationReport>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].version, wanted[i].version);
    EXPECT_EQ(found[i].loss, wanted[i].loss);
    EXPECT_EQ(found[i].accuracy, wanted[i].accuracy);
    EXPECT_EQ(found[i].tokens, wanted[i].tokens);
  }
}

TEST_P(CoordinatorModeTest, EvaluationsAreMadeInStepOrderTheSameForAnyWorkersAndChangeNoBits) {
  const std::string want = Reference(Config());
  const std::vector<EvaluationReport> evaluations = ReferenceEvaluations(EvaluatedRun(Config()));
  for (const int workers : {1, 3, 5}) {
    TestRun run(EvaluatedRun(Config()), {.expected_workers = workers, .threads = workers});
    std::vector<std::unique_ptr<FakeWorker>> fleet;
    for (int i = 0; i < workers; ++i) fleet.push_back(std::make_unique<FakeWorker>(run));
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(run.Result(4) == want) << workers;
    EXPECT_EQ(run.reports.steps_before(), (std::vector<int64_t>{3, 4}));
    ExpectSame(run.reports.evaluations(), evaluations);
  }
  EXPECT_EQ(evaluations[0].version, Version(3));
  EXPECT_EQ(evaluations[1].version, Version(4));
  EXPECT_NE(evaluations[0].loss, evaluations[1].loss);
  EXPECT_EQ(evaluations[0].tokens, 88);
  EXPECT_EQ(evaluations[0].accuracy, 0.5);
}

TEST(CoordinatorTest, VnodesOfAWorkerThatIsLostInAnEvaluationGoToOthersInTheSameRound) {
  const std::vector<EvaluationReport> want = ReferenceEvaluations(EvaluatedRun());
  TestRun run(EvaluatedRun(), {.expected_workers = 2});
  FakeWorker first(run), second(run);
  first.HoldEvaluations();
  WaitFor([&] { return first.is_evaluating(); });
  first.Kill();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ExpectSame(run.reports.evaluations(), want);
  EXPECT_EQ(run.coordinator->Status().counts.vnodes_redone, 2);
  EXPECT_TRUE(run.Result(4) == Reference(SmallRun()));
}

TEST(CoordinatorTest, AnEvaluationWaitsForWorkersWhenAllAreLost) {
  TestRun run(EvaluatedRun());
  {
    FakeWorker first(run);
    first.HoldEvaluations();
    WaitFor([&] { return first.is_evaluating(); });
    first.Kill();
    WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
    EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kWaitingForWorkers);
  }
  FakeWorker second(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ExpectSame(run.reports.evaluations(), ReferenceEvaluations(EvaluatedRun()));
}

TEST(CoordinatorTest, AStopEndsAnEvaluationAfterItsRoundAndTheResumedRunMakesItAnew) {
  const std::vector<EvaluationReport> want = ReferenceEvaluations(EvaluatedRun());
  Snapshot snapshot;
  {
    TestRun run(EvaluatedRun());
    FakeWorker worker(run);
    worker.HoldEvaluations();
    WaitFor([&] { return worker.is_evaluating(); });
    EXPECT_EQ(*run.coordinator->RequestStop("test"), 3);
    EXPECT_EQ(run.coordinator->Status().phase, RunPhase::kFinishing);
    worker.ReleaseEvaluations();
    ASSERT_OK(run.coordinator->WaitUntilFinished());
    EXPECT_TRUE(worker.finished_ok());
    EXPECT_EQ(run.committed(), 3);
    EXPECT_TRUE(run.reports.evaluations().empty());
    snapshot = run.checkpointer->snapshots().at(3);
  }
  TestRun resumed(EvaluatedRun(), {.resume = &snapshot});
  FakeWorker worker(resumed);
  ASSERT_OK(resumed.coordinator->WaitUntilFinished());
  ExpectSame(resumed.reports.evaluations(), want);
  EXPECT_EQ(resumed.reports.steps_before(), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(resumed.Result(4) == Reference(SmallRun()));
  // A run that is done makes none anew.
  snapshot = resumed.checkpointer->snapshots().at(4);
  TestRun done(EvaluatedRun(), {.resume = &snapshot});
  ASSERT_OK(done.coordinator->WaitUntilFinished());
  EXPECT_TRUE(done.reports.evaluations().empty());
}

TEST(CoordinatorTest, AStopInAnEvaluationWithNobodyLeftEndsTheRunAtOnce) {
  TestRun run(EvaluatedRun());
  FakeWorker worker(run);
  worker.HoldEvaluations();
  WaitFor([&] { return worker.is_evaluating(); });
  worker.Kill();
  WaitFor([&] { return run.coordinator->Status().counts.workers_lost == 1; });
  EXPECT_EQ(*run.coordinator->RequestStop("test"), 3);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.checkpointer->snapshots().count(3), 1u);
}

TEST(CoordinatorTest, ACheckpointThatIsAskedForInAnEvaluationIsOfItsVersion) {
  TestRun run(EvaluatedRun());
  FakeWorker worker(run);
  worker.HoldEvaluations();
  WaitFor([&] { return worker.is_evaluating(); });
  std::atomic<bool> answered = false;
  run.coordinator->RequestCheckpoint([&](absl::StatusOr<std::string> path) {
    EXPECT_EQ(*path, "step-3");
    answered = true;
  });
  WaitFor([&] { return answered.load(); });
  EXPECT_TRUE(worker.is_evaluating());
  worker.ReleaseEvaluations();
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  EXPECT_EQ(run.reports.evaluations().size(), 2u);
}

TEST(CoordinatorTest, EvaluationDataThatCannotBeReadEndsTheRunWithACheckpointOfAllThatWasDone) {
  TestRun run(EvaluatedRun());
  ASSERT_EQ(truncate(run.config.evaluation.path.c_str(), 0), 0);
  FakeWorker worker(run);
  EXPECT_THAT(run.coordinator->WaitUntilFinished(), StatusIs(absl::StatusCode::kDataLoss, "evaluation: round 0"));
  EXPECT_EQ(run.checkpointer->snapshots().count(3), 1u);
}

TEST(CoordinatorTest, TheNewestEvaluationIsPartOfTheStatus) {
  TestRun run(EvaluatedRun());
  EXPECT_FALSE(run.coordinator->Status().evaluation.has_value());
  FakeWorker worker(run);
  ASSERT_OK(run.coordinator->WaitUntilFinished());
  ASSERT_TRUE(run.coordinator->Status().evaluation.has_value());
  EXPECT_EQ(run.coordinator->Status().evaluation->version, Version(4));
}

}  // namespace
}  // namespace eps::server
