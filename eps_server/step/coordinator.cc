#include "eps_server/step/coordinator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/update_counts.h"
#include "common/model/layer_drop.h"
#include "common/telemetry/resident_bytes.h"
#include "eps_server/incarnation.h"
#include "eps_server/membership/device_choices.h"
#include "eps_server/membership/groups.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/step/checkpoint_ledger.h"
#include "eps_server/step/checkpoint_writer.h"
#include "eps_server/step/evaluation.h"
#include "eps_server/step/pass_totals.h"
#include "eps_server/step/run_progress.h"
#include "eps_server/step/step_wait.h"
#include "eps_server/step/step_watch.h"
#include "eps_server/step/vnode_ledger.h"
#include "eps_server/step/vnode_shares.h"

namespace eps::server {
namespace {

// A run whose gradient is not finite so often has diverged, and does not come back.
constexpr int kMaxSkippedInARow = 20;
constexpr std::chrono::milliseconds kTick(50);  // how late an expired lease is seen, at most

using CheckpointAnswer = CheckpointLedger::Answer;

// The order in which blobs are updated: held in pull order, eager as backward completes them.
std::vector<BlobId> UpdateOrder(const ModelSpec& model, bool held) {
  std::vector<BlobId> order;
  for (const BlobSpec& blob : model.blobs) order.push_back(blob.id);
  if (held) return order;
  const auto first_use = [&](BlobId id) {
    return *std::min_element(model.blob(id).uses.begin(), model.blob(id).uses.end());
  };
  std::stable_sort(order.begin(), order.end(), [&](BlobId a, BlobId b) { return first_use(a) > first_use(b); });
  return order;
}

int64_t LastStep(const RunConfig& run, int64_t most_steps) {
  return most_steps > 0 ? std::min(run.steps, most_steps) : run.steps;
}

absl::Status CheckExpectedWorkers(int workers) {
  if (workers >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected_workers: ", workers, ", must be positive"));
}

// Of a checkpoint. What cannot be looked at counts as nothing.
int64_t FolderBytes(const std::string& path) {
  int64_t num_bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const uintmax_t file_bytes = entry.file_size(error);
    if (!error) num_bytes += static_cast<int64_t>(file_bytes);
  }
  return num_bytes;
}

// A step whose gate is open but that is not committed: some blobs are still being made.
struct Closing {
  std::unique_ptr<VnodeLedger> ledger;
  PassTotals passes;
  absl::Duration opened_at;
  bool checkpoint = false;
  int workers = 0;
};

class CoordinatorImpl final : public Coordinator {
 public:
  explicit CoordinatorImpl(Options options)
      : model_(*options.model),
        run_(*options.run),
        store_(*options.store),
        checkpointer_(*options.checkpointer),
        observers_(std::move(options.observers)),
        witness_(options.witness),
        trace_(options.trace),
        data_(std::move(options.data)),
        evaluation_data_(std::move(options.evaluation_data)),
        expect_timeout_(options.expect_timeout),
        lease_(options.lease),
        clock_(std::move(options.clock)),
        start_(clock_()),
        first_version_(options.resume.version),
        update_order_(UpdateOrder(model_, run_.holds_updates())),
        drop_(model_, run_.layer_drop),
        members_(options.lease),
        groups_(&NewIncarnation, run_.relay.group_members),
        choices_(options.resume.choices),
        expected_workers_(options.expected_workers),
        progress_(std::move(options.resume), start_),
        step_(first_version_.value()),
        end_(std::max(LastStep(run_, options.most_steps), first_version_.value())),
        gate_(first_version_),
        evaluation_(run_.evaluation, run_.steps, evaluation_data_ == nullptr ? 0 : evaluation_data_->num_rounds(),
                    first_version_),
        checkpoints_(run_.checkpoint.every_steps, first_version_, checkpointer_.LatestPath(), start_) {
    watch_.OnProgress(start_);
    for (const BlobUse& use : model_.layers.front().blobs) first_layer_.push_back(use.blob);
    for (const BlobSpec& blob : model_.blobs) {
      if (blob.frozen) frozen_.push_back(blob.id);
    }
  }

  absl::Status Start(int threads, int64_t window_bytes) {
    StepId first_step;
    int64_t skipped_steps = 0;
    double last_norm = 0;
    LossScale loss_scale;
    std::vector<int64_t> updates;
    {
      MutexLock lock(mu_);
      first_step = step_;
      skipped_steps = progress_.state().skipped_steps;
      last_norm = progress_.state().last_norm;
      loss_scale = progress_.state().loss_scale;
      EPS_ASSIGN_OR_RETURN(updates_, UpdatesOfBlobs(progress_.state(), model_));
      updates = updates_;
    }
    EPS_ASSIGN_OR_RETURN(engine_,
                         UpdateEngine::Create({.model = &model_,
                                               .run = &run_,
                                               .store = &store_,
                                               .witness = witness_,
                                               .trace = trace_,
                                               .threads = threads,
                                               .first_step = first_step,
                                               .skipped_steps = skipped_steps,
                                               .updates = std::move(updates),
                                               .last_norm = last_norm,
                                               .loss_scale = loss_scale,
                                               .on_blob_made = [this](BlobId b, Version v) { OnBlobMade(b, v); },
                                               .on_step_decided = [this] { OnStepDecided(); },
                                               .on_step_made = [this](const StepUpdate& u) { OnStepMade(u); },
                                               .on_failure = [this](absl::Status s) { Fail(std::move(s)); }}));
    EPS_ASSIGN_OR_RETURN(
        aggregator_, Aggregator::Create({.model = &model_,
                                         .virtual_nodes = run_.batch.virtual_nodes,
                                         .gradients = run_.precision.gradients,
                                         .window_bytes = window_bytes,
                                         .consume =
                                             [this](StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
                                               engine_->Submit(step, blob, chunk, std::move(gradient));
                                             },
                                         .on_step_in = [this](StepId step) { OnStepIn(step); }}));
    writer_ = std::make_unique<CheckpointWriter>(&checkpointer_, &store_);
    for (const BlobSpec& blob : model_.blobs) store_.Publish(blob.id, ReadVersion(first_step));
    loop_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  ~CoordinatorImpl() override {
    {
      MutexLock lock(mu_);
      shutdown_ = true;
      wake_.NotifyAll();
    }
    if (loop_.joinable()) loop_.join();
    writer_.reset();  // it releases updates of the engine
    engine_.reset();  // it gives memory back to the aggregator
    aggregator_.reset();
  }

  Aggregator& aggregator() override { return *aggregator_; }
  absl::Duration lease() const override { return lease_; }

  absl::Status ExpectWorkers(int workers) override {
    EPS_RETURN_IF_ERROR(CheckExpectedWorkers(workers));
    {
      MutexLock lock(mu_);
      expected_workers_ = workers;
      Wake();
    }
    LogInfo("workers_expected", {{"workers", workers}});
    return absl::OkStatus();
  }

  absl::StatusOr<WorkerId> Attach(WorkerInfo info) override {
    const WorkerInfo shown = info;
    absl::StatusOr<WorkerId> worker;
    std::string other_model;
    {
      MutexLock lock(mu_);
      if (over_) return absl::FailedPreconditionError("the run is over");
      other_model = members_.OtherDeviceModel(info.device_model);
      worker = members_.Attach(std::move(info), clock_());
      if (worker.ok()) ++counts_.workers_attached;
    }
    if (worker.ok() && !other_model.empty()) {
      LogWarning("device_models_differ",
                 {{"worker", worker->value()},
                  {"device_model", shown.device_model},
                  {"other", other_model},
                  {"means", "the run goes on; its bits are promised for one device model only"}});
    }
    if (worker.ok()) {
      LogInfo("worker_attached", {{"worker", worker->value()},
                                  {"device", shown.device_name},
                                  {"device_model", shown.device_model},
                                  {"device_cap_bytes", shown.device_cap_bytes},
                                  {"host", shown.host_name},
                                  {"process", shown.process_id},
                                  {"threads", shown.threads}});
    }
    return worker;
  }

  absl::Status Connect(WorkerId worker, std::shared_ptr<WorkerChannel> channel) override {
    MutexLock lock(mu_);
    if (over_) return absl::FailedPreconditionError("the run is over");
    return members_.Connect(worker, std::move(channel), clock_());
  }

  absl::Status Heartbeat(WorkerId worker) override {
    MutexLock lock(mu_);
    return members_.Renew(worker, clock_());
  }

  Choices HeldChoices(const std::string& device_model) const override {
    MutexLock lock(mu_);
    return choices_.Held(device_model);
  }

  absl::StatusOr<Choices> OfferChoices(WorkerId worker, Choices offered) override {
    std::string device_model;
    bool is_first = false;
    absl::StatusOr<Choices> held;
    {
      MutexLock lock(mu_);
      EPS_ASSIGN_OR_RETURN(device_model, members_.DeviceModel(worker, clock_()));
      is_first = choices_.Held(device_model).empty();
      held = choices_.Offer(device_model, std::move(offered));
    }
    if (held.ok() && is_first) {
      LogInfo("choices_held", {{"worker", worker.value()}, {"device_model", device_model}, {"choices", held->size()}});
    }
    return held;
  }

  absl::Status Ready(WorkerId worker, WorkerMemory memory) override {
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(members_.Ready(worker, memory, clock_()));
      predicted_step_seconds_ = memory.predicted_step_seconds;
      Wake();
    }
    LogInfo("worker_ready", {{"worker", worker.value()},
                             {"device_arena_bytes", memory.device_arena_bytes},
                             {"device_outside_bytes", memory.device_outside_bytes},
                             {"host_bytes", memory.host_bytes}});
    return absl::OkStatus();
  }

  absl::Status PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records, PassTiming timing) override {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
    if (over_) return absl::OkStatus();
    if (step > step_ || (step == step_ && ledger_ == nullptr) || step.value() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("pass_done.step: ", step.value(), ", the step in progress is ", step_.value()));
    }
    if (step == step_) {
      EPS_RETURN_IF_ERROR(ledger_->AddRecords(worker, records));
      step_passes_.Add(timing);
      if (const std::optional<int> vnode = ledger_->NonfiniteVnode(); vnode && !SkipsNonfinite()) {
        FailLocked(absl::OutOfRangeError(
            absl::StrCat("step ", step.value(), ": the loss of vnode ", *vnode, " is not finite")));
      }
    }
    return CountPass(worker, std::move(timing));
  }

  absl::Status EvaluationDone(WorkerId worker, Version version, int64_t round, std::vector<VnodeRecord> records,
                              PassTiming timing) override {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
    if (over_) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(evaluation_.AddRecords(worker, version, round, records));
    return CountPass(worker, std::move(timing));
  }

  absl::Status ReportGroup(WorkerId worker, const GroupReport& report) override {
    int vnodes = 0;
    size_t members = 0;
    bool ended = false;
    StepId step;
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
      std::vector<GroupOrder> orders;
      if (report.kind == GroupReport::Kind::kFounded) {
        EPS_RETURN_IF_ERROR(groups_.Founded(worker, report.group, report.text, orders));
      } else if (report.kind == GroupReport::Kind::kJoined) {
        if (groups_.Joined(worker, report.group)) members = groups_.size(report.group);
      } else {
        ended = groups_.Failed(worker, report.group, report.text, orders);
        if (ended) vnodes = LoseGroups({report.group});
        counts_.vnodes_redone += vnodes;
      }
      Tell(std::move(orders));
      Wake();
      step = step_;
    }
    if (members > 0) LogInfo("group_formed", {{"step", step.value()}, {"members", members}});
    if (!ended) return absl::OkStatus();
    LogWarning("group_failed",
               {{"worker", worker.value()}, {"step", step.value()}, {"vnodes_to_redo", vnodes}, {"why", report.text}});
    return absl::OkStatus();
  }

  void Disconnect(WorkerId worker, absl::Status why) override {
    int vnodes = 0;
    StepId step;
    {
      MutexLock lock(mu_);
      if (!members_.Contains(worker)) return;
      vnodes = Lose(worker);
      CountLost(vnodes, why);
      step = step_;
      Wake();
    }
    LogLost(worker, step, vnodes, why);
  }

  RunStatus Status() const override {
    RunStatus status;
    {
      MutexLock lock(mu_);
      FillStatus(status);
    }
    status.steps = run_.steps;
    status.parameters = model_.num_parameters();
    status.model_state_bytes = store_.sizes().total_bytes();
    status.hold_bytes = HoldBytes(model_, run_);
    status.window_bytes = aggregator_->window_bytes();
    status.window_used_bytes = aggregator_->window_used_bytes();
    status.waiting_offers = aggregator_->waiting_offers();
    status.resident_bytes = ResidentBytes();
    status.lease_seconds = absl::ToDoubleSeconds(lease_);
    const UpdateCounts updates = engine_->counts();
    status.counts.updated_elems = updates.updated_elems;
    status.counts.update_moved_bytes = updates.moved_bytes;
    status.counts.update_busy_seconds = updates.busy_seconds;
    status.counts.update_held_seconds = updates.held_seconds;
    CountBlobs(status);
    return status;
  }

  std::vector<double> Losses() const override {
    MutexLock lock(mu_);
    return progress_.state().losses;
  }

  void RequestCheckpoint(CheckpointAnswer done) override {
    absl::StatusOr<std::string> answer;
    {
      MutexLock lock(mu_);
      if (!over_) {
        checkpoints_.Request(std::move(done));
        Wake();
        return;
      }
      answer = failure_.ok() ? absl::StatusOr<std::string>(checkpoints_.newest_path())
                             : absl::FailedPreconditionError(absl::StrCat("the run has failed: ", failure_.message()));
    }
    done(std::move(answer));
  }

  absl::StatusOr<int64_t> RequestStop(std::string reason) override {
    int64_t last = 0;
    {
      MutexLock lock(mu_);
      if (over_) return progress_.state().version.value();
      stop_requested_ = true;
      end_ = std::min(end_, step_.value() + (opened_ ? 1 : 0));
      EndWithoutWorkers();
      if (!failure_.ok()) return absl::FailedPreconditionError(failure_.message());
      last = end_;
      Wake();
    }
    LogInfo("stop_requested", {{"reason", reason}, {"after_steps", last}});
    return last;
  }

  void Fail(absl::Status why) override {
    MutexLock lock(mu_);
    FailLocked(std::move(why));
  }

  absl::Status WaitUntilFinished() override {
    MutexLock lock(mu_);
    while (!told_) over_cv_.Wait(mu_);
    return failure_;
  }

 private:
  // What the loop does once it has let go of the lock, in order.
  using Actions = std::vector<std::function<void()>>;

  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    awake_ = true;
    wake_.NotifyAll();
  }
  void FailLocked(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (over_ || !failure_.ok()) return;  // the first reason is the cause
    failure_ = std::move(why);
    Wake();
  }
  absl::Status CountPass(WorkerId worker, PassTiming timing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    all_passes_.Add(timing);
    ++counts_.passes;
    device_peak_bytes_ = std::max(device_peak_bytes_, timing.device_peak_bytes);
    Wake();
    return members_.RecordPass(worker, std::move(timing), clock_());
  }
  bool SkipsNonfinite() const { return run_.holds_updates(); }
  bool IsFirstLayer(BlobId blob) const {
    return std::find(first_layer_.begin(), first_layer_.end(), blob) != first_layer_.end();
  }

  // Blobs go on being published meanwhile: `status` is of about one moment.
  void CountBlobs(RunStatus& status) const {
    status.blobs = static_cast<int64_t>(model_.blobs.size());
    for (const BlobSpec& blob : model_.blobs) {
      const int64_t published = store_.published(blob.id).value();
      status.counts.versions_published += std::max<int64_t>(0, published - first_version_.value());
      status.blobs_pending += published <= status.step ? 1 : 0;
    }
    if (status.step >= status.steps) status.blobs_pending = 0;
  }

  // ---- called by the engine and the aggregator ----

  void OnBlobMade(BlobId blob, Version version) {
    if (IsFirstLayer(blob)) {
      MutexLock lock(mu_);
      if (version > gate_) {
        behind_gate_.push_back(blob);
        return;
      }
    }
    store_.Publish(blob, version);
  }
  void OnStepDecided() {
    MutexLock lock(mu_);
    Wake();
  }
  void OnStepMade(const StepUpdate& update) {
    MutexLock lock(mu_);
    made_.push_back(update);
    Wake();
  }
  void OnStepIn(StepId step) {
    MutexLock lock(mu_);
    contributions_in_ = step;
    Wake();
  }

  // ---- the loop: decides under the lock, acts without it ----

  void Loop() {
    while (true) {
      Actions actions;
      {
        MutexLock lock(mu_);
        if (shutdown_) return;
        awake_ = false;
        Advance(actions);
        if (actions.empty() && !awake_) wake_.WaitFor(mu_, kTick);
      }
      for (const std::function<void()>& action : actions) action();
    }
  }

  void Advance(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (over_) return;
    if (!failure_.ok()) return End(actions);
    ExpireLeases(actions);
    Tell(groups_.Expire(clock_()));
    if (closing_.has_value() && !made_.empty()) Commit(actions);
    if (opened_ && ledger_ != nullptr && ledger_->AllRecordsIn() && contributions_in_ == step_ &&
        !closing_.has_value()) {
      OpenGate(actions);
    }
    if (!opened_ && !closing_.has_value()) Evaluate(actions);
    if (!opened_ && step_.value() < end_ && !EvaluationComesFirst() && MayBegin()) OpenStep(actions);
    SendGroupOrders(actions);  // before the assignments, which may belong to them
    if (ledger_ != nullptr) AssignVnodes(actions);
    EndWithoutWorkers();
    if (!opened_ && !closing_.has_value()) AtBoundary(actions);
    if (IsWatched()) WatchStep(actions);
  }

  // ---- evaluation: no step is in progress, and all are committed ----

  // Whether the version that the next step would read has to be evaluated first, or to the end.
  bool EvaluationComesFirst() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return evaluation_.is_on() || (!EndsEarly() && evaluation_.IsDue(gate_));
  }
  bool EndsEarly() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_requested_ || !ended_for_.ok(); }

  void Evaluate(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!EvaluationComesFirst()) return;
    if (!evaluation_.is_on()) {
      if (!MayBegin()) return;
      begun_ = true;
      evaluation_.Begin(gate_, clock_());
      watch_.OnProgress(clock_());
    }
    if (evaluation_.FinishRound()) watch_.OnProgress(clock_());
    if (EndsEarly() && (evaluation_.ledger() == nullptr || members_.num_alive() == 0)) return evaluation_.Abandon();
    if (std::optional<EvaluationReport> report = evaluation_.Finish(clock_()); report.has_value()) {
      newest_evaluation_ = report;
      actions.push_back([this, report = *report] { Tell(report); });
    } else if (const std::optional<int64_t> round = evaluation_.NextRead(); round.has_value()) {
      actions.push_back([this, round = *round] { ReadRound(round); });
    } else if (evaluation_.ledger() != nullptr) {
      AssignRound(actions);
    }
  }
  void ReadRound(int64_t round) {
    absl::StatusOr<std::vector<VnodeBatch>> batches = evaluation_data_->Read(round);
    MutexLock lock(mu_);
    Wake();
    if (batches.ok()) return evaluation_.StartRound(*std::move(batches));
    if (!evaluation_.is_on()) return;  // stopped meanwhile
    evaluation_.Abandon();
    EndBeforeStep(Annotate(batches.status(), "evaluation"));
  }
  void AssignRound(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::vector<int> vnodes = evaluation_.ledger()->Unassigned();
    const std::vector<WorkerId> workers = members_.ReadyWorkers();
    if (vnodes.empty() || workers.empty()) return;
    watch_.OnProgress(clock_());
    for (const VnodeShare& share : ShareVnodes(vnodes, workers, {})) {
      auto assignment = std::make_shared<Assignment>(evaluation_.Assign(share.worker, share.vnodes));
      actions.push_back(
          [channel = members_.channel(share.worker), assignment] { channel->SendAssignment(assignment); });
    }
  }
  void Tell(const EvaluationReport& report) {
    LogInfo("evaluation", {{"step", report.version.value()},
                           {"loss", report.loss},
                           {"accuracy", report.accuracy},
                           {"tokens", report.tokens},
                           {"seconds", report.seconds}});
    for (StepObserver* observer : observers_) observer->OnEvaluation(report);
  }

  // Stopped, and nobody is left to finish the step in progress: the run ends before it, unless weights were updated in it.
  void EndWithoutWorkers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!stop_requested_ || !opened_ || closing_.has_value() || members_.num_alive() > 0) return;
    engine_->HoldUpdates(progress_.state().version);
    if (engine_->HasUpdated(step_)) {
      return FailLocked(absl::UnavailableError(absl::StrCat("stopped, and no worker is left to finish step ",
                                                            step_.value(), ", in which weights were updated")));
    }
    EndBeforeStep(absl::OkStatus());
  }
  // The step in progress, in which no weight was updated, is taken back: the run ends with the checkpoint of the one
  // before, for `why`.
  void EndBeforeStep(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_for_ = std::move(why);
    opened_ = false;
    ledger_.reset();
    end_ = step_.value();
    Wake();
  }

  void ExpireLeases(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const WorkerId worker : members_.Expired(clock_())) {
      std::shared_ptr<WorkerChannel> channel = members_.channel(worker);
      const int vnodes = Lose(worker);
      const absl::Status why =
          absl::DeadlineExceededError(absl::StrCat("not heard of for ", absl::FormatDuration(lease_)));
      CountLost(vnodes, why);
      actions.push_back([this, worker, vnodes, why, channel, step = step_] {
        LogLost(worker, step, vnodes, why);
        if (channel != nullptr) channel->SendFinish(false, std::string(why.message()));
      });
    }
  }

  // Returns how many vnodes others must run again.
  int Lose(WorkerId worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    members_.Remove(worker);
    std::vector<uint64_t> lost_groups;
    Tell(groups_.Lose(worker, lost_groups));
    const int of_groups = LoseGroups(lost_groups) + evaluation_.Lose(worker);
    if (ledger_ == nullptr || !ledger_->Holds(worker)) return of_groups;
    return of_groups + ledger_->Lose(worker, aggregator_->MissingVnodes());
  }
  int LoseGroups(absl::Span<const uint64_t> groups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int vnodes = 0;
    if (ledger_ == nullptr || groups.empty()) return vnodes;
    const std::vector<bool> missing = aggregator_->MissingVnodes();
    for (const uint64_t group : groups) vnodes += ledger_->LoseGroup(group, missing);
    return vnodes;
  }
  // Soon: the loop sends them.
  void Tell(std::vector<GroupOrder> orders) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (orders.empty()) return;
    for (GroupOrder& order : orders) group_orders_.push_back(std::move(order));
    Wake();
  }
  void SendGroupOrders(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (GroupOrder& order : std::exchange(group_orders_, {})) {
      std::shared_ptr<WorkerChannel> channel = members_.channel(order.worker);
      if (channel == nullptr) continue;
      actions.push_back([channel, order = std::move(order)] {
        LogGroupOrder(order);
        channel->SendGroupOrder(order);
      });
    }
  }
  static void LogGroupOrder(const GroupOrder& order) {
    if (order.kind == GroupOrder::Kind::kFound) {
      LogInfo("group_forms", {{"worker", order.worker.value()}, {"members", order.size}});
    } else if (order.kind == GroupOrder::Kind::kEnd) {
      LogInfo("group_ended", {{"worker", order.worker.value()}, {"why", order.reason}});
    }
  }
  static bool LeftByItself(int vnodes, const absl::Status& why) { return why.ok() && vnodes == 0; }
  void CountLost(int vnodes, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    counts_.workers_lost += LeftByItself(vnodes, why) ? 0 : 1;
    counts_.vnodes_redone += vnodes;
  }
  void LogLost(WorkerId worker, StepId step, int vnodes, const absl::Status& why) const {
    const LogLevel level = LeftByItself(vnodes, why) ? LogLevel::kInfo : LogLevel::kWarning;
    Log(level, "worker_lost",
        {{"worker", worker.value()},
         {"step", step.value()},
         {"vnodes_to_redo", vnodes},
         {"why", why.ok() ? absl::string_view("it left") : why.message()}});
  }

  // While a step should be moving.
  bool IsWatched() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !over_ && failure_.ok() && (opened_ || closing_.has_value() || evaluation_.is_on());
  }

  // Someone should look: says who has not finished what, once per wait and interval.
  void WatchStep(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Duration now = clock_();
    if (!watch_.IsDue(now)) return;
    ++counts_.step_waits;
    StepWait wait = FindStepWait();
    wait.seconds = absl::ToDoubleSeconds(watch_.Waited(now));
    actions.push_back([wait] { LogStepWait(wait); });
  }

  // What the step in progress, or the one before whose blobs are being made, waits for.
  StepWait FindStepWait() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    StepWait wait{.step = step_};
    if (closing_.has_value()) {
      wait.step = closing_->ledger->step();
      wait.cause = engine_->update_is_held() ? "checkpoint" : "update";
      for (const BlobSpec& blob : model_.blobs) {
        if (store_.published(blob.id) < NextVersion(wait.step)) wait.blobs.push_back(blob.name);
      }
      return wait;
    }
    const VnodeLedger* ledger = LedgerInWork();
    if (ledger == nullptr) {
      wait.cause = "data";
      return wait;
    }
    if (evaluation_.is_on()) {
      wait.cause = members_.ReadyWorkers().empty() ? "no_worker" : "compute";
      wait.vnodes = ledger->Unfinished(/*missing=*/{});
      return wait;
    }
    wait.cause = members_.ReadyWorkers().empty() ? "no_worker" : ledger_->AllRecordsIn() ? "push" : "compute";
    wait.vnodes = ledger_->Unfinished(aggregator_->MissingVnodes());
    for (const BlobId blob : aggregator_->MissingBlobs()) wait.blobs.push_back(model_.blob(blob).name);
    return wait;
  }

  bool MayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int ready = static_cast<int>(members_.ReadyWorkers().size());
    if (ready == 0) return false;
    return begun_ || ready >= expected_workers_ || clock_() - start_ >= expect_timeout_;
  }

  void OpenStep(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    begun_ = opened_ = true;
    Tell(groups_.Arrange(members_.GroupCandidates(), clock_()));
    step_opened_at_ = clock_();
    watch_.OnProgress(step_opened_at_);
    step_passes_ = {};
    loss_scale_.reset();
    actions.push_back([this, step = step_] {
      absl::StatusOr<std::vector<VnodeBatch>> batches = data_->Read(step);
      aggregator_->BeginStep(step, DroppedBlobs(model_, drop_.DroppedIn(step)));
      engine_->OpenStep(step);
      MutexLock lock(mu_);
      if (!opened_) return;  // EndWithoutWorkers
      if (!batches.ok()) return EndBeforeStep(batches.status());
      ledger_ = std::make_unique<VnodeLedger>(step, *std::move(batches));
      Wake();
    });
  }

  // All vnodes at a step's begin, to groups too; those of lost workers later, to each alone.
  void AssignVnodes(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::vector<int> vnodes = ledger_->Unassigned();
    const std::vector<WorkerId> workers = members_.ReadyWorkers();
    if (vnodes.empty() || workers.empty()) return;
    const bool fresh = ledger_->IsFresh();
    if (fresh && groups_.IsForming()) return;  // not for long: Expire
    if (!loss_scale_.has_value()) loss_scale_ = engine_->loss_scale(step_);
    if (!loss_scale_.has_value()) return;  // not for long: OnStepDecided
    watch_.OnProgress(clock_());           // who gets the vnodes of a lost worker is not to blame for its silence
    const std::vector<Groups::Formed> groups = fresh ? groups_.formed() : std::vector<Groups::Formed>();
    for (const VnodeShare& share : ShareVnodes(vnodes, workers, groups)) {
      auto assignment = std::make_shared<Assignment>(ledger_->Assign(share.worker, share.vnodes, share.group));
      assignment->loss_scale = *loss_scale_;
      assignment->dropped = drop_.DroppedIn(step_);
      actions.push_back(
          [channel = members_.channel(share.worker), assignment] { channel->SendAssignment(assignment); });
    }
  }

  // Every contribution and record of the step is in: nothing of it can be lost any more, so the
  // next may begin.
  void OpenGate(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Version next = NextVersion(step_);
    closing_.emplace();
    closing_->ledger = std::move(ledger_);
    closing_->passes = std::move(step_passes_);
    closing_->opened_at = step_opened_at_;
    closing_->workers = static_cast<int>(members_.ReadyWorkers().size());
    most_workers_ = std::max(most_workers_, closing_->workers);
    closing_->checkpoint = checkpoints_.IsDue(next) || (next.value() >= end_ && EndsWithCheckpoint());
    // Before the next step's contributions can come: no blob runs away from its capture.
    if (closing_->checkpoint) StartCheckpoint(next);
    opened_ = false;
    watch_.OnProgress(clock_());
    step_ = StepId(next.value());
    gate_ = next;
    actions.push_back([this, next, blobs = std::exchange(behind_gate_, {})] {
      for (const BlobId blob : frozen_) store_.Publish(blob, next);  // as it was
      for (const BlobId blob : blobs) store_.Publish(blob, next);
    });
  }

  // A run that ends early can go on from where it ended, whatever its RunSpec says of the last step.
  bool EndsWithCheckpoint() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return run_.checkpoint.last || stop_requested_ || !ended_for_.ok();
  }
  void StartCheckpoint(Version version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    engine_->HoldUpdates(version);
    checkpoints_.Start(version);
  }
  // Whether the writer of a checkpoint should hurry: for an update, a person, or the end of the run.
  bool IsAwaited(Version being_written) const {
    if (engine_->update_is_held()) return true;
    MutexLock lock(mu_);
    return stop_requested_ || being_written.value() >= end_ || checkpoints_.IsAwaited(being_written) ||
           checkpoints_.IsLate(being_written, progress_.state().version);
  }
  CheckpointWriter::Job CheckpointJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Version version = progress_.state().version;
    checkpoints_.Begin(version, clock_());
    RunState state = progress_.state();
    state.choices = choices_.all();
    state.updates = UpdatesByName(updates_, state, model_);
    return {.state = std::move(state),
            .order = update_order_,
            .captured = [this, version](BlobId blob) { engine_->ReleaseUpdate(blob, version); },
            .is_awaited = [this, version] { return IsAwaited(version); },
            .done = [this, version](absl::StatusOr<std::string> path) { OnWritten(version, std::move(path)); }};
  }

  // Every blob is at the next version and every record is in.
  void Commit(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Duration now = clock_();
    const VnodeLedger& ledger = *closing_->ledger;
    StepUpdate made = std::move(made_.front());
    made_.pop_front();
    EPS_CHECK(made.step == ledger.step());
    updates_ = std::move(made.updates);
    StepReport report;
    report.step = ledger.step();
    report.loss = ledger.Loss();
    report.learning_rate = made.learning_rate;
    report.gradient_norm = std::isfinite(made.gradient_norm) ? made.gradient_norm : -1;
    report.skipped = made.skipped;
    report.loss_scale = made.loss_scale;
    report.next_loss_scale = made.next_loss_scale;
    report.held_seconds = made.held_seconds;
    report.seconds = absl::ToDoubleSeconds(now - std::max(progress_.last_commit(), closing_->opened_at));
    report.tokens = ledger.counted_tokens();
    report.tokens_per_second = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
    report.wait_fraction = closing_->passes.Fractions();
    report.device_peak_bytes = device_peak_bytes_;
    report.workers = closing_->workers;

    progress_.Commit(report, now);
    watch_.OnStepDone(absl::Seconds(report.seconds));
    watch_.OnProgress(now);
    if (progress_.skipped_in_a_row() == kMaxSkippedInARow) {
      FailLocked(absl::OutOfRangeError(absl::StrCat("step ", report.step.value(), ": the gradient of the last ",
                                                    kMaxSkippedInARow, " steps was not finite: ", made.why_skipped,
                                                    "; lower optimizer.schedule.peak, or warm up longer")));
    }
    if (closing_->checkpoint) {
      actions.push_back([this, job = CheckpointJob()] { writer_->Push(job); });
    }
    actions.push_back([this, report, why_skipped = made.why_skipped] { Tell(report, why_skipped); });
    closing_.reset();
  }

  void Tell(const StepReport& report, const std::string& why_skipped) {
    LogInfo("step", {{"step", report.step.value()},
                     {"loss", report.loss},
                     {"learning_rate", report.learning_rate},
                     {"gradient_norm", report.gradient_norm},
                     {"seconds", report.seconds},
                     {"tokens_per_second", report.tokens_per_second},
                     {"workers", report.workers}});
    if (report.skipped) {
      LogWarning("step_skipped", {{"step", report.step.value()}, {"gradient_not_finite", why_skipped}});
    }
    for (StepObserver* observer : observers_) observer->OnCommit(report);
  }

  // No step is in progress and all are committed: checkpoints of this very version, and the end.
  void AtBoundary(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Version version = progress_.state().version;
    const bool ends = step_.value() >= end_ && !EvaluationComesFirst();
    if (checkpoints_.IsRequested() && checkpoints_.IsWritten(version)) {
      actions.push_back([answers = checkpoints_.TakeRequests(), path = checkpoints_.newest_path()] {
        for (const CheckpointAnswer& answer : answers) answer(path);
      });
    } else if (checkpoints_.IsRequested() && checkpoints_.IsStarted(version)) {
      checkpoints_.Await(version);
    }
    const bool ends_with_one = ends && EndsWithCheckpoint();
    if ((ends_with_one || checkpoints_.IsRequested()) && !checkpoints_.IsStarted(version)) {
      StartCheckpoint(version);
      actions.push_back([this, job = CheckpointJob()] { writer_->Push(job); });
    }
    if (ends && (ends_with_one ? checkpoints_.IsWritten(version) : !checkpoints_.IsAnyBeingWritten())) {
      failure_.Update(ended_for_);
      End(actions);
    }
  }

  void OnWritten(Version version, absl::StatusOr<std::string> path) {
    const int64_t num_bytes = path.ok() ? FolderBytes(*path) : 0;
    if (absl::IsCancelled(path.status())) {
      LogInfo("checkpoint_abandoned", {{"step", version.value()}, {"stands", checkpointer_.LatestPath()}});
    } else if (path.ok()) {
      LogInfo("checkpoint_written", {{"step", version.value()}, {"path", *path}});
    } else {
      LogError("checkpoint_failed", {{"step", version.value()},
                                     {"why", path.status().message()},
                                     {"stands", checkpointer_.LatestPath()},
                                     {"next", "the run goes on; tried again at the next checkpoint that is due"}});
    }
    std::vector<CheckpointAnswer> answers;
    {
      MutexLock lock(mu_);
      answers = checkpoints_.OnWritten(version, path, num_bytes, clock_());
      if (!path.ok() && version.value() >= end_) {
        FailLocked(ended_for_.ok() ? Annotate(path.status(), "the last checkpoint") : ended_for_);
      }
      Wake();
    }
    for (const CheckpointAnswer& answer : answers) answer(path);
  }

  // The run is over: everybody is told, then WaitUntilFinished returns.
  void End(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    over_ = true;
    std::vector<CheckpointAnswer> unanswered = failure_.ok() ? checkpoints_.TakeRequests() : checkpoints_.TakeAll();
    actions.push_back([this, failure = failure_, channels = members_.Channels(), unanswered,
                       path = checkpoints_.newest_path(), steps = progress_.state().version.value()] {
      const absl::Status reason = failure.ok()
                                      ? absl::UnavailableError("the run is over")
                                      : absl::AbortedError(absl::StrCat("the run has failed: ", failure.message()));
      if (failure.ok()) {
        LogInfo("run_finished", {{"steps", steps}, {"checkpoint", path}});
      } else {
        LogError("run_failed", {{"steps", steps}, {"why", failure.message()}, {"checkpoint", path}});
      }
      engine_->Stop();
      aggregator_->Stop(reason);
      store_.CancelWaiters(reason);
      for (const std::shared_ptr<WorkerChannel>& channel : channels) {
        channel->SendFinish(failure.ok(), failure.ok() ? "the run is over" : std::string(failure.message()));
      }
      for (const CheckpointAnswer& answer : unanswered) {
        answer(failure.ok() ? absl::StatusOr<std::string>(path)
                            : absl::FailedPreconditionError(std::string(reason.message())));
      }
      MutexLock lock(mu_);
      told_ = true;
      over_cv_.NotifyAll();
    });
  }

  RunPhase Phase() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!failure_.ok()) return RunPhase::kFailed;
    // Who watches takes a daemon that is gone after this for one that has done its work: not one that was told to end before.
    if (over_ && step_.value() >= run_.steps) return RunPhase::kFinished;
    if (over_ || step_.value() >= end_ || (stop_requested_ && opened_)) return RunPhase::kFinishing;
    if (members_.ReadyWorkers().empty() || !begun_) return RunPhase::kWaitingForWorkers;
    return RunPhase::kTraining;
  }

  void FillStatus(RunStatus& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    status.phase = Phase();
    status.failure = std::string(failure_.message());
    const absl::Duration now = clock_();
    status.counts = counts_;
    progress_.Fill(status, end_, now);
    if (status.phase == RunPhase::kWaitingForWorkers) {  // what the steps before took tells nothing of now
      status.tokens_per_second = 0;
      status.eta_seconds = -1;
    }
    checkpoints_.Fill(status, now);
    status.wait_fraction = all_passes_.Fractions();
    status.device_peak_bytes = device_peak_bytes_;
    status.device_cap_bytes = members_.largest_cap_bytes();
    status.most_workers = most_workers_;
    status.predicted_step_seconds = predicted_step_seconds_;
    if (IsWatched() && watch_.IsLate(now)) {
      const absl::string_view cause = FindStepWait().cause;
      status.step_wait_cause = std::string(cause.data(), cause.size());
      status.step_wait_seconds = absl::ToDoubleSeconds(watch_.Waited(now));
    }
    status.counts.pass_seconds = all_passes_.seconds;
    status.counts.wait_seconds = all_passes_.wait_seconds;
    status.workers = members_.List(now);
    for (WorkerStatus& worker : status.workers) {
      const VnodeLedger* ledger = LedgerInWork();
      if (ledger == nullptr || worker.state != WorkerState::kIdle) continue;
      worker.vnodes = ledger->VnodesOf(worker.id);
      if (ledger->IsRunning(worker.id)) worker.state = WorkerState::kRunning;
    }
    status.evaluation = newest_evaluation_;
  }
  // Of the step in progress, or of an evaluation's round; null: there is none, or its data is being read.
  const VnodeLedger* LedgerInWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ledger_ != nullptr ? ledger_.get() : evaluation_.ledger();
  }

  // Fixed after construction.
  const ModelSpec& model_;
  const RunConfig& run_;
  Store& store_;
  Checkpointer& checkpointer_;
  const std::vector<StepObserver*> observers_;
  ChunkWitness* const witness_;
  TraceLog* const trace_;
  const std::unique_ptr<StepData> data_;
  const std::unique_ptr<EvaluationData> evaluation_data_;  // null: nothing is evaluated
  const absl::Duration expect_timeout_;
  const absl::Duration lease_;
  const MonotonicClock clock_;
  const absl::Duration start_;
  const Version first_version_;  // of this sitting
  const std::vector<BlobId> update_order_;
  const LayerDrop drop_;
  std::vector<BlobId> first_layer_;  // what the gate keeps back
  std::vector<BlobId> frozen_;       // whose versions advance with the gate
  std::unique_ptr<Aggregator> aggregator_;
  std::unique_ptr<UpdateEngine> engine_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::thread loop_;

  // Guarded by mu_. The engine's and the aggregator's locks are taken inside it, never the other
  // way round.
  mutable Mutex mu_;
  CondVar wake_, over_cv_;
  bool awake_ ABSL_GUARDED_BY(mu_) = false;  // something happened since the loop last looked
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  Membership members_ ABSL_GUARDED_BY(mu_);
  Groups groups_ ABSL_GUARDED_BY(mu_);
  std::vector<GroupOrder> group_orders_ ABSL_GUARDED_BY(mu_);  // not sent yet
  DeviceChoices choices_ ABSL_GUARDED_BY(mu_);
  int expected_workers_ ABSL_GUARDED_BY(mu_);  // the first step waits until so many are ready

  RunProgress progress_ ABSL_GUARDED_BY(mu_);          // as committed
  std::vector<int64_t> updates_ ABSL_GUARDED_BY(mu_);  // by blob, as committed
  StepId step_ ABSL_GUARDED_BY(mu_);                   // in progress if opened_, else the next one
  int64_t end_ ABSL_GUARDED_BY(mu_);                   // steps after which the run ends; never rises
  bool begun_ ABSL_GUARDED_BY(mu_) = false;            // the first step of this sitting was opened
  bool opened_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<VnodeLedger> ledger_ ABSL_GUARDED_BY(mu_);  // of step_; null until its data is read
  // Of step_, once it is known: the engine may be ahead of a step that lacks records alone.
  std::optional<double> loss_scale_ ABSL_GUARDED_BY(mu_);
  PassTotals step_passes_ ABSL_GUARDED_BY(mu_);
  absl::Duration step_opened_at_ ABSL_GUARDED_BY(mu_);
  StepId contributions_in_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  Version gate_ ABSL_GUARDED_BY(mu_);                     // newest version of the first layer that may be published
  std::vector<BlobId> behind_gate_ ABSL_GUARDED_BY(mu_);  // made at gate_ + 1, not published
  std::optional<Closing> closing_ ABSL_GUARDED_BY(mu_);
  std::deque<StepUpdate> made_ ABSL_GUARDED_BY(mu_);  // not committed

  Evaluation evaluation_ ABSL_GUARDED_BY(mu_);  // only while no step is in progress, and all are committed
  std::optional<EvaluationReport> newest_evaluation_ ABSL_GUARDED_BY(mu_);

  CheckpointLedger checkpoints_ ABSL_GUARDED_BY(mu_);
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  bool told_ ABSL_GUARDED_BY(mu_) = false;  // everybody that it is over
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_for_ ABSL_GUARDED_BY(mu_);  // becomes failure_ once the last checkpoint is on disk

  PassTotals all_passes_ ABSL_GUARDED_BY(mu_);
  RunCounts counts_ ABSL_GUARDED_BY(mu_);  // what is counted here; the rest is added when it is asked for
  StepWatch watch_ ABSL_GUARDED_BY(mu_);
  int64_t device_peak_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int most_workers_ ABSL_GUARDED_BY(mu_) = 0;
  double predicted_step_seconds_ ABSL_GUARDED_BY(mu_) = 0;  // the newest worker's
};

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(Options options) {
  EPS_CHECK(options.model != nullptr && options.run != nullptr && options.store != nullptr);
  EPS_CHECK(options.checkpointer != nullptr && options.data != nullptr && options.clock);
  EPS_CHECK(options.run->evaluation.is_on() == (options.evaluation_data != nullptr));
  EPS_RETURN_IF_ERROR(CheckExpectedWorkers(options.expected_workers));
  if (options.lease <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease: ", absl::FormatDuration(options.lease), ", must be positive"));
  }
  if (options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("threads: ", options.threads, ", must be positive"));
  }
  const int threads = options.threads;
  const int64_t window_bytes = options.window_bytes;
  auto coordinator = std::make_unique<CoordinatorImpl>(std::move(options));
  EPS_RETURN_IF_ERROR(coordinator->Start(threads, window_bytes));
  return coordinator;
}

}  // namespace eps::server
