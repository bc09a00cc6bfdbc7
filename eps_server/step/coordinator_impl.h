#ifndef EPS_SERVER_STEP_COORDINATOR_IMPL_H_
#define EPS_SERVER_STEP_COORDINATOR_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/model/model_flops.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/telemetry/trace_log.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/data/step_data.h"
#include "eps_server/membership/device_choices.h"
#include "eps_server/membership/device_models.h"
#include "eps_server/membership/groups.h"
#include "eps_server/membership/membership.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/step/checkpoint_ledger.h"
#include "eps_server/step/checkpoint_writer.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/evaluation.h"
#include "eps_server/step/pass_totals.h"
#include "eps_server/step/run_progress.h"
#include "eps_server/step/run_status.h"
#include "eps_server/step/step_report.h"
#include "eps_server/step/step_wait.h"
#include "eps_server/step/step_watch.h"
#include "eps_server/step/vnode_balancer.h"
#include "eps_server/step/vnode_ledger.h"
#include "eps_server/store/store.h"

namespace eps::server {

// A step from its begin to its commit.
struct StepInWork {
  absl::Duration opened_at;
  std::unique_ptr<VnodeLedger> ledger;  // null until its data is read
  std::optional<double> loss_scale;     // once it is known: the engine may be ahead of a step that lacks records alone
  PassTotals passes;
  bool lost_vnodes = false;  // of a worker that was lost, whoever has run them again since
};

// One whose gate is open but that is not committed: some blobs are still being made.
struct ClosingStep {
  StepInWork step;
  bool checkpoint = false;  // of the version that it makes
  int workers = 0;          // that were ready
};

// The coordinator. A run is one state under one lock, and its methods are in files by what they are about:
//   coordinator.cc           how it is made; what is asked of the run as a whole; what engine and aggregator tell
//   coordinator_workers.cc   who takes part: workers come, say what they did, form groups, are lost
//   coordinator_steps.cc     the loop, and a step from its begin to its commit
//   coordinator_boundary.cc  evaluations, checkpoints, the end of the run
//   coordinator_status.cc    what the run tells of itself, and what its step waits for
class CoordinatorImpl final : public Coordinator {
 public:
  explicit CoordinatorImpl(Options options);
  absl::Status Start(int threads, int64_t window_bytes);
  ~CoordinatorImpl() override;

  Aggregator& aggregator() override { return *aggregator_; }
  absl::Duration lease() const override { return lease_; }
  absl::Status ExpectWorkers(int workers) override;
  absl::StatusOr<WorkerId> Attach(WorkerInfo info) override;
  absl::Status Connect(WorkerId worker, std::shared_ptr<WorkerChannel> channel) override;
  absl::Status Heartbeat(WorkerId worker) override;
  Choices HeldChoices(const std::string& device_model) const override;
  absl::StatusOr<Choices> OfferChoices(WorkerId worker, Choices offered) override;
  absl::Status Ready(WorkerId worker, WorkerMemory memory) override;
  absl::Status PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records, PassTiming timing) override;
  absl::Status EvaluationDone(WorkerId worker, Version version, int64_t round, std::vector<VnodeRecord> records,
                              PassTiming timing) override;
  absl::Status ReportGroup(WorkerId worker, const GroupReport& report) override;
  absl::Status Leave(WorkerId worker) override;
  absl::Status Drain(absl::Span<const WorkerId> workers) override;
  void Disconnect(WorkerId worker, absl::Status why) override;
  RunStatus Status() const override;
  std::vector<double> Losses() const override;
  void RequestCheckpoint(CheckpointLedger::Answer done) override;
  absl::StatusOr<int64_t> RequestStop(std::string reason) override;
  void ExpectReturn() override;
  void Fail(absl::Status why) override;
  absl::Status WaitUntilFinished() override;

 private:
  // What the loop does once it has let go of the lock, in order.
  using Actions = std::vector<std::function<void()>>;

  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    awake_ = true;
    wake_.NotifyAll();
  }
  void FailLocked(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool EndsEarly() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_requested_ || !ended_for_.ok(); }
  // Of the step in progress; null: there is none, or its data is being read.
  VnodeLedger* ledger() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return open_.has_value() ? open_->ledger.get() : nullptr;
  }

  // ---- called by the engine and the aggregator ----

  void OnBlobMade(BlobId blob, Version version);
  void OnStepDecided();
  void OnStepMade(const StepUpdate& update);
  void OnStepIn(StepId step);
  bool IsFirstLayer(BlobId blob) const {
    return std::find(first_layer_.begin(), first_layer_.end(), blob) != first_layer_.end();
  }

  // ---- workers ----

  absl::Status CountPass(WorkerId worker, PassTiming timing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SkipsNonfinite() const { return run_.defers_updates(); }
  void ExpireLeases(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those that asked to leave go once all of the step, or of the evaluation's round, that they have a part in is in.
  // Until then the others may die, and nobody else finishes it: of a step in which weights were updated no checkpoint
  // can be made.
  void ReleaseLeaving(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // These say how many vnodes others must run again. Lose also forgets the worker, and counts it unless it left.
  struct Gone {
    int vnodes = 0;
    bool by_itself = false;  // or as the run was over: it is not lost
  };
  Gone Lose(WorkerId worker, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int TakeBack(WorkerId worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int LoseGroups(absl::Span<const uint64_t> groups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // So many vnodes of the step, which their holders did not finish, are to be run again; fails the run where the step's
  // weights may be gone already.
  void FailUnlessRedoable(int vnodes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void LogGone(WorkerId worker, StepId step, const Gone& gone, const absl::Status& why);
  // The loop sends them, soon.
  void QueueGroupOrders(std::vector<GroupOrder> orders) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendGroupOrders(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void LogGroupOrder(const GroupOrder& order);

  // ---- the loop and its steps: it decides under the lock, and acts without it ----

  void Loop();
  void Advance(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until the first step begins with those that are ready, if no other gets ready; nullopt: it has begun, or none is.
  std::optional<absl::Duration> TimeToStart(absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OpenStep(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // All vnodes at a step's begin, to groups too; those of lost workers later, to each alone.
  void AssignVnodes(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the layers of `step`, those that it does not leave out: its times are about this share of a whole step's.
  double ShareOfLayers(StepId step) const;
  void LogShares(StepId step, const VnodeBalancer::Decision& decision) const;
  // Every contribution and record of the step is in: nothing of it can be lost any more, so the next may begin.
  void OpenGate(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Every blob is at the next version and every record is in.
  void Commit(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReportStep(const StepReport& report, const std::string& why_skipped);
  // The step in progress, in which no weight was updated, is taken back: the run ends with the checkpoint of the one
  // before, for `why`.
  void EndBeforeStep(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the step in progress: each record and contribution.
  bool IsAllIn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stopped, and nobody is left to finish the step in progress: the run ends before it, for `why`, unless weights were
  // updated in it. Where nobody was there when it was stopped, or who left had no part in the step, that is well.
  void EndWithoutWorkers(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Unfinished() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // why else
  // Over, but for a daemon that is started again: it was stopped before its last step, or a step was lost.
  bool MayGoOn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // who attaches is told

  // ---- evaluation: no step is in progress, and all are committed ----

  // Whether the version that the next step would read has to be evaluated first, or to the end.
  bool EvaluationComesFirst() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return evaluation_.is_on() || (!EndsEarly() && evaluation_.IsDue(gate_));
  }
  void Evaluate(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReadRound(int64_t round);
  void AssignRound(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReportEvaluation(const EvaluationReport& report);

  // ---- checkpoints, at any time, and the end ----

  // A run that ends early can go on from where it ended, whatever its RunSpec says of the last step. Without a step there
  // is nothing that was not there before.
  bool EndsWithCheckpoint() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return makes_steps_ && (run_.checkpoint.last || EndsEarly());
  }
  bool EndsWithCheckpointOf(Version version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return version.value() >= end_ && EndsWithCheckpoint();
  }
  // It may begin before its step is committed: updates are held for it.
  void StartCheckpoint(Version version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CheckpointWriter::Job CheckpointJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Called by the writer's thread: whether it should hurry, for an update, a person, or the end of the run.
  bool IsAwaited(Version being_written) const;
  // Called by the writer's thread.
  void OnWritten(Version version, absl::StatusOr<std::string> path);
  // No step is in progress and all are committed: checkpoints of this very version, and the end.
  void AtBoundary(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The run is over: everybody is told, then WaitUntilFinished returns.
  void End(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- status ----

  RunPhase Phase() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FillStatus(RunStatus& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t BlobsSummed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blobs go on being published meanwhile: `status` is of about one moment.
  void FillBlobs(RunStatus& status) const;
  // Of the step in progress, or of an evaluation's round; null: there is none, or its data is being read.
  const VnodeLedger* LedgerInWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ledger() != nullptr ? ledger() : evaluation_.ledger();
  }
  // While a step should be moving.
  bool IsWatched() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !over_ && failure_.ok() && (open_.has_value() || closing_.has_value() || evaluation_.is_on());
  }
  // Someone should look: says who has not finished what, once per wait and interval.
  void WatchStep(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What the step in progress, or the one before whose blobs are being made, waits for.
  StepWait FindStepWait(absl::Duration now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

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
  const ToldExperts told_experts_;
  const ModelFlops flops_;
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
  absl::Duration leases_seen_at_ ABSL_GUARDED_BY(mu_);    // by the loop, the last time
  absl::Duration no_expiry_before_ ABSL_GUARDED_BY(mu_);  // of any lease
  Groups groups_ ABSL_GUARDED_BY(mu_);
  std::vector<GroupOrder> group_orders_ ABSL_GUARDED_BY(mu_);  // not sent yet
  DeviceChoices choices_ ABSL_GUARDED_BY(mu_);
  DeviceModels device_models_ ABSL_GUARDED_BY(mu_);
  int expected_workers_ ABSL_GUARDED_BY(mu_);  // the first step waits until so many are ready

  RunProgress progress_ ABSL_GUARDED_BY(mu_);          // as committed
  std::vector<int64_t> updates_ ABSL_GUARDED_BY(mu_);  // by blob, as committed
  StepId step_ ABSL_GUARDED_BY(mu_);                   // open_'s, else the next one
  const bool makes_steps_;                             // false: what is due at the start is evaluated, and that is all
  int64_t end_ ABSL_GUARDED_BY(mu_);                   // steps after which the run ends; never rises
  bool begun_ ABSL_GUARDED_BY(mu_) = false;            // the first step of this sitting was opened
  std::optional<StepInWork> open_ ABSL_GUARDED_BY(mu_);  // the step in progress
  VnodeBalancer balancer_ ABSL_GUARDED_BY(mu_);
  StepId contributions_in_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  Version gate_ ABSL_GUARDED_BY(mu_);                        // newest version of the first layer that may be published
  std::vector<BlobId> behind_gate_ ABSL_GUARDED_BY(mu_);     // made at gate_ + 1, not published
  std::optional<ClosingStep> closing_ ABSL_GUARDED_BY(mu_);  // the one before
  std::deque<StepUpdate> made_ ABSL_GUARDED_BY(mu_);         // not committed

  Evaluation evaluation_ ABSL_GUARDED_BY(mu_);  // only while no step is in progress, and all are committed
  std::optional<EvaluationReport> newest_evaluation_ ABSL_GUARDED_BY(mu_);

  CheckpointLedger checkpoints_ ABSL_GUARDED_BY(mu_);
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  bool returns_ ABSL_GUARDED_BY(mu_) = false;  // ExpectReturn
  bool told_ ABSL_GUARDED_BY(mu_) = false;     // everybody that it is over
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_for_ ABSL_GUARDED_BY(mu_);  // becomes failure_ once the last checkpoint is on disk

  PassTotals all_passes_ ABSL_GUARDED_BY(mu_);
  RunCounts counts_ ABSL_GUARDED_BY(mu_);  // what is counted here; the rest is added when it is asked for
  StepWatch watch_ ABSL_GUARDED_BY(mu_);
  int64_t device_peak_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int most_workers_ ABSL_GUARDED_BY(mu_) = 0;
  double predicted_step_seconds_ ABSL_GUARDED_BY(mu_) = 0;  // the newest worker's
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_COORDINATOR_IMPL_H_
