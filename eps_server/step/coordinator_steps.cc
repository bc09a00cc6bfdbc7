// The loop, and a step from its begin to its commit.

#include "eps_server/step/coordinator_impl.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/model/layer_drop.h"
#include "common/schedule/vnode_batch.h"
#include "eps_server/membership/groups.h"
#include "eps_server/membership/membership.h"
#include "eps_server/optimizer/divergence.h"
#include "eps_server/optimizer/unread_rows.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/step/step_report.h"
#include "eps_server/step/vnode_balancer.h"
#include "eps_server/step/vnode_ledger.h"
#include "eps_server/step/vnode_shares.h"

namespace eps::server {
namespace {

constexpr std::chrono::milliseconds kTick(50);  // how late an expired lease is seen, but for standstills

// Null where nobody asks. Tokens are below the vocabulary, as StepData has checked.
std::shared_ptr<const RowsRead> RowsReadBy(const std::vector<VnodeBatch>& batches, const RunConfig& run) {
  if (!run.updates_unread_rows_early()) return nullptr;
  auto rows = std::make_shared<RowsRead>(run.model.vocab);
  for (const VnodeBatch& batch : batches) rows->Add(batch.tokens);
  return rows;
}

}  // namespace

void CoordinatorImpl::Loop() {
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

void CoordinatorImpl::Advance(Actions& actions) {
  if (over_) return;
  if (!failure_.ok()) return End(actions);
  ExpireLeases(actions);
  QueueGroupOrders(groups_.Expire(clock_()));
  if (closing_.has_value() && !made_.empty()) Commit(actions);
  if (ledger() != nullptr && ledger()->AllRecordsIn() && contributions_in_ == step_ && !closing_.has_value()) {
    OpenGate(actions);
  }
  ReleaseLeaving(actions);
  if (!open_.has_value() && !closing_.has_value()) Evaluate(actions);
  if (!open_.has_value() && step_.value() < end_ && !EvaluationComesFirst() && MayBegin()) OpenStep(actions);
  SendGroupOrders(actions);  // before the assignments, which may belong to them
  if (ledger() != nullptr) AssignVnodes(actions);
  EndWithoutWorkers(open_.has_value() && open_->lost_vnodes ? Unfinished() : absl::OkStatus());
  if (!open_.has_value() && !closing_.has_value()) AtBoundary(actions);
  if (IsWatched()) WatchStep(actions);
}

bool CoordinatorImpl::MayBegin() const {
  if (begun_) return !members_.ReadyWorkers().empty();
  return TimeToStart(clock_()) == absl::ZeroDuration();
}

std::optional<absl::Duration> CoordinatorImpl::TimeToStart(absl::Duration now) const {
  const int ready = static_cast<int>(members_.ReadyWorkers().size());
  if (begun_ || ready == 0) return std::nullopt;
  if (ready >= expected_workers_) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(), start_ + expect_timeout_ - now);
}

void CoordinatorImpl::OpenStep(Actions& actions) {
  begun_ = true;
  open_.emplace();
  open_->opened_at = clock_();
  QueueGroupOrders(groups_.Arrange(members_.GroupCandidates(), clock_()));
  watch_.OnProgress(open_->opened_at);
  actions.push_back([this, step = step_] {
    absl::StatusOr<std::vector<VnodeBatch>> batches = data_->Read(step);
    // The engine first: it is to know the step's rows before any gradient of the step comes.
    engine_->OpenStep(step, batches.ok() ? RowsReadBy(*batches, run_) : nullptr);
    aggregator_->BeginStep(step, DroppedBlobs(model_, drop_.DroppedIn(step)));
    MutexLock lock(mu_);
    if (!open_.has_value()) return;  // EndWithoutWorkers
    if (!batches.ok()) return EndBeforeStep(batches.status());
    open_->ledger = std::make_unique<VnodeLedger>(step, *std::move(batches), told_experts_);
    Wake();
  });
}

void CoordinatorImpl::AssignVnodes(Actions& actions) {
  const std::vector<int> vnodes = ledger()->Unassigned();
  const std::vector<WorkerId> workers = members_.WorkersForTheRest();
  if (vnodes.empty() || workers.empty()) return;
  const bool fresh = ledger()->IsFresh();
  if (fresh && groups_.IsForming()) return;  // not for long: Expire
  if (!open_->loss_scale.has_value()) open_->loss_scale = engine_->loss_scale(step_);
  if (!open_->loss_scale.has_value()) return;  // not for long: OnStepDecided
  watch_.OnProgress(clock_());                 // who gets the vnodes of a lost worker is not to blame for its silence
  const std::vector<Groups::Formed> groups = fresh ? groups_.formed() : std::vector<Groups::Formed>();
  std::vector<int> counts;
  if (fresh && groups.empty() && run_.relay.vnode_shares == VnodeShares::kBySpeed) {
    counts = balancer_.BeginStep(workers);
  } else {
    balancer_.SkipStep();
  }
  for (const VnodeShare& share : ShareVnodes(vnodes, workers, groups, counts)) {
    auto assignment = std::make_shared<Assignment>(ledger()->Assign(share.worker, share.vnodes, share.group));
    assignment->loss_scale = *open_->loss_scale;
    assignment->dropped = drop_.DroppedIn(step_);
    device_models_.Use(members_.DeviceModel(share.worker));
    actions.push_back([channel = members_.channel(share.worker), assignment] { channel->SendAssignment(assignment); });
  }
}

void CoordinatorImpl::OpenGate(Actions& actions) {
  const StepId step = step_;
  const Version next = NextVersion(step);
  const absl::Duration now = clock_();
  watch_.OnProgress(now);
  closing_ = ClosingStep{.step = *std::exchange(open_, std::nullopt),
                         .checkpoint = checkpoints_.IsDue(next) || EndsWithCheckpointOf(next),
                         .workers = members_.num_ready()};
  most_workers_ = std::max(most_workers_, closing_->workers);
  // Before the next step's contributions can come: no blob runs away from its capture.
  if (closing_->checkpoint) StartCheckpoint(next);
  step_ = StepId(next.value());
  gate_ = next;
  actions.push_back([this, step, next, blobs = std::exchange(behind_gate_, {})] {
    engine_->EndReads(step);
    for (const BlobId blob : frozen_) store_.Publish(blob, next);  // as it was
    for (const BlobId blob : blobs) store_.Publish(blob, next);
  });
  const double seconds = absl::ToDoubleSeconds(now - closing_->step.opened_at) / ShareOfLayers(step);
  if (const auto decision = balancer_.EndStep(seconds); decision.has_value()) {
    if (decision->changes_counts()) ++counts_.share_changes;
    actions.push_back([this, step, decision = *decision] { LogShares(step, decision); });
  }
}

double CoordinatorImpl::ShareOfLayers(StepId step) const {
  const auto dropped = static_cast<double>(drop_.DroppedIn(step).size());
  return 1 - dropped / static_cast<double>(model_.layers.size());
}

void CoordinatorImpl::LogShares(StepId step, const VnodeBalancer::Decision& decision) const {
  using Kind = VnodeBalancer::Decision::Kind;
  std::vector<std::string> counts, seconds;
  for (const VnodeBalancer::WorkerVnodes& worker : decision.workers) {
    counts.push_back(absl::StrCat(worker.worker.value(), ":", worker.vnodes));
    seconds.push_back(absl::StrCat(worker.worker.value(), ":", worker.vnode_seconds));
  }
  const std::string vnode_counts = absl::StrJoin(counts, ","), vnode_seconds = absl::StrJoin(seconds, ",");
  switch (decision.kind) {
    case Kind::kTried:
      return LogInfo("vnode_shares_tried", {{"step", step.value()},
                                            {"vnode_counts", vnode_counts},
                                            {"vnode_seconds", vnode_seconds},
                                            {"step_seconds", decision.step_seconds},
                                            {"promised_step_seconds", decision.promised_step_seconds}});
    case Kind::kKept:
    case Kind::kTakenBack:
      return LogInfo(decision.kind == Kind::kKept ? "vnode_shares_kept" : "vnode_shares_taken_back",
                     {{"step", step.value()},
                      {"vnode_counts", vnode_counts},
                      {"vnode_seconds", vnode_seconds},
                      {"step_seconds", decision.step_seconds},
                      {"step_seconds_before", decision.step_seconds_before}});
    case Kind::kWorkerSlow:
      return LogWarning("worker_slows_steps", {{"worker", decision.slow_worker.value()},
                                               {"step", step.value()},
                                               {"vnode_counts", vnode_counts},
                                               {"vnode_seconds", vnode_seconds},
                                               {"step_seconds", decision.step_seconds},
                                               {"step_seconds_without_it", decision.promised_step_seconds},
                                               {"next", "more and smaller vnodes, or a run without this worker"}});
  }
}

void CoordinatorImpl::Commit(Actions& actions) {
  const absl::Duration now = clock_();
  const VnodeLedger& ledger = *closing_->step.ledger;
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
  report.seconds = absl::ToDoubleSeconds(now - std::max(progress_.last_commit(), closing_->step.opened_at));
  report.tokens = ledger.counted_tokens();
  report.tokens_per_second = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
  report.model_flops = flops_.Of({.tokens = ledger.num_tokens(),
                                  .samples = run_.batch.sequences_per_step(),
                                  .dropped = drop_.DroppedIn(report.step)});
  report.wait_fraction = closing_->step.passes.Fractions();
  report.pass_seconds = closing_->step.passes.seconds;
  report.device_peak_bytes = device_peak_bytes_;
  report.workers = closing_->workers;
  if (run_.objective() == Objective::kPreferences && report.tokens > 0) {
    const VnodeTotals totals = ledger.Totals();
    const auto pairs = static_cast<double>(report.tokens);
    report.pairs = {.accuracy = static_cast<double>(totals.correct) / pairs,
                    .rewards = {.chosen = totals.chosen_reward / pairs, .rejected = totals.rejected_reward / pairs}};
  }
  report.expert_load = LoadOf(ledger.TotalExpertRows(), told_experts_);

  progress_.Commit(report, now);
  watch_.OnStepDone(absl::Seconds(report.seconds));
  watch_.OnProgress(now);
  if (progress_.has_diverged()) {
    FailLocked(DivergedError(report.step, absl::StrCat("the gradient of the last ", progress_.skipped_in_a_row(),
                                                       " steps was not finite: ", made.why_skipped)));
  }
  if (closing_->checkpoint) {
    actions.push_back([this, job = CheckpointJob()] { writer_->Push(job); });
  }
  actions.push_back([this, report, why_skipped = made.why_skipped] { ReportStep(report, why_skipped); });
  closing_.reset();
}

void CoordinatorImpl::ReportStep(const StepReport& report, const std::string& why_skipped) {
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

bool CoordinatorImpl::IsAllIn() const {
  if (ledger() == nullptr || !ledger()->AllRecordsIn()) return false;
  return aggregator_->AllIn();
}

absl::Status CoordinatorImpl::Unfinished() const {
  return absl::UnavailableError(absl::StrCat("stopped, and no worker is left to finish step ", step_.value()));
}

void CoordinatorImpl::EndWithoutWorkers(absl::Status why) {
  if (!stop_requested_ || !open_.has_value() || closing_.has_value() || members_.num_alive() > 0) return;
  if (IsAllIn()) return;  // who finished it was let go, and the aggregator is about to say so (OnStepIn)
  if (!engine_->TryHoldUpdates(progress_.state().version)) {
    return FailLocked(absl::UnavailableError(absl::StrCat(Unfinished().message(), ", in which weights were updated")));
  }
  EndBeforeStep(std::move(why));
}

void CoordinatorImpl::EndBeforeStep(absl::Status why) {
  ended_for_ = std::move(why);
  open_.reset();
  end_ = step_.value();
  Wake();
}

}  // namespace eps::server
