#ifndef EPS_SERVER_STEP_COORDINATOR_TEST_RUN_H_
#define EPS_SERVER_STEP_COORDINATOR_TEST_RUN_H_

// A run for the coordinator's tests: small, with its checkpoints in memory.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/data/step_data.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/store/store.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

namespace eps::server {

// Two blocks of two chunks each.
inline RunConfig SmallRun(ClipMode clip = ClipMode::kExact, Dtype dtype = Dtype::kBf16) {
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
inline void WaitFor(const std::function<bool()>& condition) {
  bool is_true = condition();
  for (int i = 0; i < 20000 && !is_true; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
    is_true = condition();
  }
  ASSERT_TRUE(is_true);
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
          EXPECT_OK(store.ReadMaster(order[b], state.version, 0, absl::MakeSpan(values)));
        } else {
          values = ReadMoment(store, model_.blob(order[b]), which, 0, model_.blob(order[b]).num_elems);
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
  absl::StatusOr<RunState> LoadLatest(Store&, int, LongWork*) override { return absl::UnimplementedError("not here"); }
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
  std::optional<int64_t> most_steps = std::nullopt;  // 0: without the data of steps
  FakeClock* clock = nullptr;
  absl::Duration lease = absl::Seconds(10);
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
                              .lease = options.lease,
                              .threads = options.threads,
                              .window_bytes = options.window_bytes,
                              .most_steps = options.most_steps};
    if (config.evaluation.is_on()) {
      made.evaluation_data = *EvaluationData::Open(this->config, made.data.get(), dir.File("evaluation_tokens"), 1);
    }
    made.resume.loss_scale = FirstLossScale(this->config.precision.loss_scale);
    if (options.resume != nullptr) made.resume = options.resume->state;
    if (options.most_steps == 0) made.data.reset();
    if (options.clock != nullptr) made.clock = options.clock->clock();
    coordinator = *Coordinator::Create(std::move(made));
  }

  void Load(const BlobSpec& blob, const Snapshot* from) {
    if (from == nullptr) {
      std::vector<float> values(static_cast<size_t>(blob.num_elems));
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>((i * 7 + 3) % 101) - 0.5f;
      EXPECT_OK(store->LoadMaster(blob.id, Version(0), 0, values));
      return;
    }
    const std::vector<std::vector<float>>& tensors = from->blobs.at(blob.id);
    EXPECT_OK(store->LoadMaster(blob.id, from->state.version, 0, tensors[0]));
    for (size_t which = 1; which < tensors.size(); ++which) {
      EXPECT_OK(store->LoadMoment(blob.id, static_cast<int>(which) - 1, 0, tensors[which]));
    }
  }

  // Masters of the end, as bits, and the losses.
  std::string Result(int64_t version) {
    std::string bits;
    for (const BlobSpec& blob : model.blobs) {
      std::vector<float> values(static_cast<size_t>(blob.num_elems));
      EXPECT_OK(store->ReadMaster(blob.id, Version(version), 0, absl::MakeSpan(values)));
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

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_COORDINATOR_TEST_RUN_H_
