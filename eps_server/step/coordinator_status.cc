// What the run tells of itself, and what its step waits for.

#include "eps_server/step/coordinator_impl.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/telemetry/resident_bytes.h"
#include "eps_server/membership/membership.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/step/run_status.h"
#include "eps_server/step/step_wait.h"
#include "eps_server/step/vnode_ledger.h"

namespace eps::server {
namespace {

// Of a step's time, what a round of an evaluation takes, about: backward is twice forward's work.
constexpr double kForwardShare = 1.0 / 3;

// StatusReply.counted, by what the committed steps counted and had.
const char* WhatIsCounted(const RunConfig& run, const RunStatus& status) {
  if (run.objective() == Objective::kClasses) return "samples";
  if (run.objective() == Objective::kPreferences) return "pairs";
  return status.tokens < status.step * run.tokens_per_step() ? "counted tokens" : "tokens";
}

}  // namespace

RunStatus CoordinatorImpl::Status() const {
  RunStatus status;
  {
    MutexLock lock(mu_);
    FillStatus(status);
  }
  status.steps = makes_steps_ ? run_.steps : end_;
  status.evaluates = !makes_steps_;
  status.parameters = model_.num_parameters();
  if (makes_steps_) status.trainable_parameters = model_.num_trainable_parameters();
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
  FillBlobs(status);
  return status;
}

std::vector<double> CoordinatorImpl::Losses() const {
  MutexLock lock(mu_);
  return progress_.state().losses;
}

void CoordinatorImpl::FillStatus(RunStatus& status) const {
  status.phase = Phase();
  status.failure = std::string(failure_.message());
  const absl::Duration now = clock_();
  status.counts = counts_;
  const bool is_late = IsWatched() && watch_.IsLate(now);
  progress_.Fill(status, end_, now, is_late ? watch_.Waited(now) : absl::ZeroDuration());
  status.counted = WhatIsCounted(run_, status);
  if (status.eta_seconds >= 0 && !EndsEarly()) {
    const double passes = run_.preferences.has_reference() ? 2 : 1;
    status.eta_seconds += evaluation_.SecondsLeft(progress_.state().version, end_, now,
                                                  passes * kForwardShare * status.median_step_seconds);
  }
  if (status.phase == RunPhase::kFailed) status.eta_seconds = -1;
  if (status.phase == RunPhase::kWaitingForWorkers) {  // what the steps before took tells nothing of now
    status.tokens_per_second = 0;
    status.model_flops_per_second = 0;
    status.eta_seconds = -1;
  }
  checkpoints_.Fill(status, now);
  status.device_peak_bytes = device_peak_bytes_;
  status.device_cap_bytes = members_.largest_cap_bytes();
  status.most_workers = most_workers_;
  status.device_models.assign(device_models_.used().begin(), device_models_.used().end());
  status.predicted_step_seconds = predicted_step_seconds_;
  if (closing_.has_value() || open_.has_value()) {
    status.step_seconds =
        absl::ToDoubleSeconds(now - (closing_.has_value() ? closing_->step.opened_at : open_->opened_at));
  }
  if (is_late) status.step_wait = FindStepWait(now);
  status.counts.pass_seconds = all_passes_.seconds;
  status.counts.wait_seconds = all_passes_.wait_seconds;
  status.workers = members_.List(now);
  for (WorkerStatus& worker : status.workers) {
    const VnodeLedger* ledger = LedgerInWork();
    if (ledger == nullptr || IsGone(worker.state)) continue;
    worker.vnodes = ledger->VnodesOf(worker.id);
    if (worker.state == WorkerState::kIdle && ledger->IsRunning(worker.id)) worker.state = WorkerState::kRunning;
  }
  for (const Groups::Formed& group : groups_.formed()) {
    for (WorkerStatus& worker : status.workers) {
      if (std::find(group.members.begin(), group.members.end(), worker.id) == group.members.end()) continue;
      worker.group_members = static_cast<int>(group.members.size());
      worker.group_founder = group.members.front();
    }
  }
  status.evaluation = newest_evaluation_;
  status.evaluating = evaluation_.Progress(now);
  status.updates_wait_for_norm = run_.defers_updates();
  status.blobs_summed = BlobsSummed();
  if (!begun_ && !over_) {
    const std::optional<absl::Duration> to_start = TimeToStart(now);
    status.workers_expected = expected_workers_;
    status.start_in_seconds = to_start.has_value() ? absl::ToDoubleSeconds(*to_start) : -1;
  }
}

int64_t CoordinatorImpl::BlobsSummed() const {
  const auto blobs = static_cast<int64_t>(model_.blobs.size());
  if (closing_.has_value()) return blobs;
  // While its data is read, the aggregator still tells of the step before.
  return ledger() == nullptr ? 0 : blobs - static_cast<int64_t>(aggregator_->MissingBlobs().size());
}

RunPhase CoordinatorImpl::Phase() const {
  if (!failure_.ok()) return RunPhase::kFailed;
  // Who watches takes a daemon that is gone after this for one that has done its work: not one that was told to end
  // before.
  if (over_ && step_.value() >= run_.steps) return RunPhase::kFinished;
  if (over_ && !makes_steps_ && newest_evaluation_.has_value()) return RunPhase::kFinished;
  if (!over_ && !stop_requested_ && EvaluationComesFirst() && (members_.num_ready() == 0 || !begun_)) {
    return RunPhase::kWaitingForWorkers;  // of the last step, too
  }
  // After the last step, too: its workers are needed, and others may come.
  if (!over_ && !EndsEarly() && EvaluationComesFirst() && begun_) return RunPhase::kTraining;
  if (over_ || step_.value() >= end_ || (stop_requested_ && open_.has_value())) return RunPhase::kFinishing;
  if (members_.num_ready() == 0 || !begun_) return RunPhase::kWaitingForWorkers;
  return RunPhase::kTraining;
}

void CoordinatorImpl::FillBlobs(RunStatus& status) const {
  for (const BlobSpec& blob : model_.blobs) {
    const int64_t published = store_.published(blob.id).value();
    status.counts.versions_published += std::max<int64_t>(0, published - first_version_.value());
    status.blobs_updated.push_back(published > status.step || status.step >= status.steps);
  }
}

void CoordinatorImpl::WatchStep(Actions& actions) {
  const absl::Duration now = clock_();
  if (!watch_.IsDue(now)) return;
  ++counts_.step_waits;
  StepWait wait = FindStepWait(now);
  actions.push_back([wait] { LogStepWait(wait); });
}

StepWait CoordinatorImpl::FindStepWait(absl::Duration now) const {
  StepWait wait{.step = step_, .seconds = absl::ToDoubleSeconds(watch_.Waited(now))};
  if (closing_.has_value()) {
    wait.step = closing_->step.ledger->step();
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
    wait.cause = members_.num_ready() == 0 ? "no_worker" : "compute";
    wait.vnodes = ledger->Unfinished(/*missing=*/{});
    return wait;
  }
  if (aggregator_->waits_for_updates()) {  // workers wait for room that these will make
    wait.cause = engine_->update_is_held() ? "checkpoint" : "update";
    const std::vector<BlobId> missing = aggregator_->MissingBlobs();
    for (const BlobSpec& blob : model_.blobs) {
      if (blob.frozen || store_.published(blob.id) >= NextVersion(wait.step)) continue;
      if (std::find(missing.begin(), missing.end(), blob.id) == missing.end()) wait.blobs.push_back(blob.name);
    }
    return wait;
  }
  wait.cause = members_.num_ready() == 0 ? "no_worker" : ledger->AllRecordsIn() ? "push" : "compute";
  // Who computes and is not furthest behind may be waiting itself, for room for its gradients.
  const std::vector<bool> behind = aggregator_->VnodesMissingNext();
  const bool tells_apart = wait.cause == "compute" && std::find(behind.begin(), behind.end(), true) != behind.end();
  wait.vnodes = tells_apart ? ledger->HoldersOf(behind) : ledger->Unfinished(aggregator_->MissingVnodes());
  for (const BlobId blob : aggregator_->MissingBlobs()) wait.blobs.push_back(model_.blob(blob).name);
  return wait;
}

}  // namespace eps::server
