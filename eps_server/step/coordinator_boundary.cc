// Evaluations, checkpoints, the end of the run.

#include "eps_server/step/coordinator_impl.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/update_counts.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/checkpoint_ledger.h"
#include "eps_server/step/checkpoint_writer.h"
#include "eps_server/step/step_report.h"
#include "eps_server/step/vnode_shares.h"

namespace eps::server {
namespace {

// Of a checkpoint. What cannot be looked at counts as nothing.
int64_t FolderBytes(const std::string& path) {
  int64_t num_bytes = 0;
  std::error_code error;
  // Not a range-for, whose increment throws.
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code no_size;
    const uintmax_t file_bytes = entry->file_size(no_size);
    if (!no_size) num_bytes += static_cast<int64_t>(file_bytes);
  }
  return num_bytes;
}

}  // namespace

void CoordinatorImpl::Evaluate(Actions& actions) {
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
    const bool is_of_pairs = run_.objective() == Objective::kPreferences;
    report->is_of_samples = is_of_pairs || run_.objective() == Objective::kClasses;
    if (!is_of_pairs) report->rewards.reset();
    newest_evaluation_ = report;
    counts_.evaluation_seconds += report->seconds;
    actions.push_back([this, report = *report] { ReportEvaluation(report); });
  } else if (const std::optional<int64_t> round = evaluation_.NextRead(); round.has_value()) {
    actions.push_back([this, round = *round] { ReadRound(round); });
  } else if (evaluation_.ledger() != nullptr) {
    AssignRound(actions);
  }
}

void CoordinatorImpl::ReadRound(int64_t round) {
  absl::StatusOr<std::vector<VnodeBatch>> batches = evaluation_data_->Read(round);
  MutexLock lock(mu_);
  Wake();
  if (batches.ok()) return evaluation_.StartRound(*std::move(batches));
  if (!evaluation_.is_on()) return;  // stopped meanwhile
  evaluation_.Abandon();
  EndBeforeStep(Annotate(batches.status(), "evaluation"));
}

void CoordinatorImpl::AssignRound(Actions& actions) {
  const std::vector<int> vnodes = evaluation_.ledger()->Unassigned();
  const std::vector<WorkerId> workers = members_.WorkersForTheRest();
  if (vnodes.empty() || workers.empty()) return;
  watch_.OnProgress(clock_());
  const bool by_speed = evaluation_.ledger()->IsFresh() && groups_.formed().empty();
  const std::vector<int> counts = by_speed ? balancer_.CountsOf(workers) : std::vector<int>();
  for (const VnodeShare& share : ShareVnodes(vnodes, workers, {}, counts)) {
    auto assignment = std::make_shared<Assignment>(evaluation_.Assign(share.worker, share.vnodes));
    actions.push_back([channel = members_.channel(share.worker), assignment] { channel->SendAssignment(assignment); });
  }
}

void CoordinatorImpl::ReportEvaluation(const EvaluationReport& report) {
  LogInfo("evaluation", {{"step", report.version.value()},
                         {"loss", report.loss},
                         {"accuracy", report.accuracy},
                         {"tokens", report.tokens},
                         {"seconds", report.seconds}});
  for (StepObserver* observer : observers_) observer->OnEvaluation(report);
}

void CoordinatorImpl::StartCheckpoint(Version version) {
  engine_->HoldUpdates(version);
  checkpoints_.Start(version);
}

bool CoordinatorImpl::IsAwaited(Version being_written) const {
  if (engine_->update_is_held()) return true;
  MutexLock lock(mu_);
  return stop_requested_ || !failure_.ok() || being_written.value() >= end_ || checkpoints_.IsAwaited(being_written) ||
         checkpoints_.IsLate(being_written, progress_.state().version);
}

CheckpointWriter::Job CoordinatorImpl::CheckpointJob() {
  const Version version = progress_.state().version;
  checkpoints_.Begin(version, clock_());
  RunState state = progress_.state();
  state.choices = choices_.all();
  state.device_models = device_models_.used();
  state.updates = UpdatesByName(updates_, state, model_);
  return {.state = std::move(state),
          .order = update_order_,
          .captured = [this, version](BlobId blob) { engine_->ReleaseUpdate(blob, version); },
          .is_awaited = [this, version] { return IsAwaited(version); },
          .done = [this, version](absl::StatusOr<std::string> path) { OnWritten(version, std::move(path)); }};
}

void CoordinatorImpl::AtBoundary(Actions& actions) {
  const Version version = progress_.state().version;
  const bool ends = step_.value() >= end_ && !EvaluationComesFirst();
  if (checkpoints_.IsRequested() && checkpoints_.IsWritten(version)) {
    actions.push_back([answers = checkpoints_.TakeRequests(), path = checkpoints_.newest_path()] {
      for (const CheckpointLedger::Answer& answer : answers) answer(path);
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

void CoordinatorImpl::OnWritten(Version version, absl::StatusOr<std::string> path) {
  const int64_t num_bytes = path.ok() ? FolderBytes(*path) : 0;
  absl::string_view next = "the run goes on; tried again at the next checkpoint that is due";  // where it failed
  std::vector<CheckpointLedger::Answer> answers;
  {
    MutexLock lock(mu_);
    answers = checkpoints_.OnWritten(version, path, num_bytes, clock_());
    if (!path.ok() && EndsWithCheckpointOf(version)) {
      next = "the run fails: it was to end with this one";
      FailLocked(ended_for_.ok() ? Annotate(path.status(), "the last checkpoint") : ended_for_);
    } else if (!path.ok() && version.value() >= end_) {
      next = "the run ends without it, as checkpoint.last is false";
    } else if (!failure_.ok()) {
      next = "the run has failed";
    }
    Wake();
  }
  if (absl::IsCancelled(path.status())) {
    LogInfo("checkpoint_abandoned", {{"step", version.value()}, {"stands", checkpointer_.LatestPath()}});
  } else if (path.ok()) {
    LogInfo("checkpoint_written", {{"step", version.value()}, {"path", *path}});
  } else {
    LogError("checkpoint_failed", {{"step", version.value()},
                                   {"why", path.status().message()},
                                   {"stands", checkpointer_.LatestPath()},
                                   {"next", next}});
  }
  for (const CheckpointLedger::Answer& answer : answers) answer(path);
}

bool CoordinatorImpl::MayGoOn() const {
  if (!failure_.ok()) return absl::IsAborted(failure_);
  return returns_ && makes_steps_ && progress_.state().version.value() < run_.steps;
}

absl::Status CoordinatorImpl::Over() const {
  return MayGoOn() ? absl::UnavailableError("the daemon was stopped before its run was done")
                   : absl::FailedPreconditionError("the run is over");
}

void CoordinatorImpl::End(Actions& actions) {
  over_ = true;
  std::vector<CheckpointLedger::Answer> unanswered =
      failure_.ok() ? checkpoints_.TakeRequests() : checkpoints_.TakeAll();
  actions.push_back([this, failure = failure_, channels = members_.Channels(), unanswered,
                     path = checkpoints_.newest_path(), step = progress_.state().version.value(),
                     may_go_on = MayGoOn()] {
    const absl::Status reason =
        failure.ok() ? absl::UnavailableError("the run is over")
                     : absl::FailedPreconditionError(absl::StrCat("the run has failed: ", failure.message()));
    if (failure.ok()) {
      // `step` is less where it was told to end before.
      LogInfo("run_finished", {{"step", step}, {"steps", run_.steps}, {"checkpoint", path}});
    } else {
      LogError("run_failed", {{"step", step}, {"steps", run_.steps}, {"why", failure.message()}, {"checkpoint", path}});
    }
    engine_->Stop();
    aggregator_->Stop(reason);
    store_.CancelWaiters(reason);
    for (const std::shared_ptr<WorkerChannel>& channel : channels) {
      channel->SendFinish({.ok = failure.ok(),
                           .reason = failure.ok() ? "the run is over" : std::string(failure.message()),
                           .run_may_go_on = may_go_on});
    }
    for (const CheckpointLedger::Answer& answer : unanswered) {
      answer(failure.ok() ? absl::StatusOr<std::string>(path)
                          : absl::FailedPreconditionError(std::string(reason.message())));
    }
    MutexLock lock(mu_);
    told_ = true;
    over_cv_.NotifyAll();
  });
}

}  // namespace eps::server
