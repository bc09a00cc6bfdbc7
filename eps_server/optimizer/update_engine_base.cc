#include "eps_server/optimizer/update_engine_base.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "eps_server/optimizer/divergence.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "eps_server/optimizer/nonfinite_gradient.h"
#include "eps_server/optimizer/schedule.h"

namespace eps::server {

UpdateEngineBase::UpdateEngineBase(Options options)
    : model_(*options.model),
      run_(*options.run),
      trace_(options.trace),
      on_blob_made_(std::move(options.on_blob_made)),
      on_step_decided_(std::move(options.on_step_decided)),
      on_step_made_(std::move(options.on_step_made)),
      on_failure_(std::move(options.on_failure)),
      groups_(GroupTensors(model_, run_.optimizer)),
      drop_(model_, run_.layer_drop),
      work_(model_, *options.store, groups_, options.witness),
      step_(options.first_step),
      last_norm_(options.last_norm),
      updates_(std::move(options.updates)),
      next_loss_scale_(options.loss_scale),
      queue_(options.threads) {
  for (const BlobSpec& blob : model_.blobs) blobs_to_make_ += blob.frozen ? 0 : 1;
  if (trace_ != nullptr) held_track_ = trace_->AddTrack("updates held");
  if (updates_.empty()) updates_.resize(model_.blobs.size(), options.first_step.value() - options.skipped_steps);
  EPS_CHECK(updates_.size() == model_.blobs.size());
}

UpdateEngineBase::~UpdateEngineBase() { EPS_CHECK(tasks_ended_); }

void UpdateEngineBase::Begin() {
  MutexLock lock(mu_);
  BeginStep(step_);
}

void UpdateEngineBase::EndTasks() {
  stopped_ = true;
  queue_.Finish();
  tasks_ended_ = true;
}

// ---- what the engine is told ----

void UpdateEngineBase::OpenStep(StepId step, std::shared_ptr<const RowsRead> rows) {
  if (stopped_) return;
  MutexLock lock(mu_);
  EPS_CHECK(step > opened_);
  opened_ = step;
  rows_of_opened_ = std::move(rows);
  if (step == step_) BeginOpened();
}

void UpdateEngineBase::EndReads(StepId step) {
  if (stopped_) return;
  MutexLock lock(mu_);
  EPS_CHECK(step > reads_ended_);
  reads_ended_ = step;
  if (step == step_) OverwriteVersion();
}

void UpdateEngineBase::Submit(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
  MutexLock lock(mu_);
  if (stopped_) {
    if (step == step_) GatherStopped(blob, chunk, gradient);
    return;
  }
  EPS_CHECK(step >= step_);
  if (step > step_) {
    later_.push_back({step, blob, chunk, std::move(gradient)});
  } else {
    Gather(blob, chunk, std::move(gradient));
  }
}

void UpdateEngineBase::SubmitLaterUses(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
  if (stopped_ || !TakesLaterUses(blob)) return;
  MutexLock lock(mu_);
  if (step > step_) {
    later_.push_back({step, blob, chunk, std::move(gradient), /*of_later_uses=*/true});
  } else if (step == step_) {
    GatherLaterUses(chunk, std::move(gradient));
  }
}

void UpdateEngineBase::Stop() {
  stopped_ = true;
  queue_.Close();
}

// ---- a step begins ----

void UpdateEngineBase::BeginStep(StepId step) {
  step_ = step;
  learning_rate_ = LearningRate(run_.optimizer, run_.steps, step);
  why_skipped_.clear();
  is_decided_ = !run_.defers_updates();
  loss_scale_before_ = std::exchange(loss_scale_, next_loss_scale_);
  blobs_made_ = 0;
  step_held_seconds_ = 0;
  blobs_.assign(model_.blobs.size(), {});
  // A step that was skipped has no norm: the run had another mode then.
  const bool is_lagged = run_.optimizer.clip == ClipMode::kLagged && step.value() > 0 && last_norm_ >= 0;
  const double scale = is_lagged ? ClipScale(run_.optimizer, last_norm_) : 1;
  const std::vector<bool> dropped = DroppedBlobs(model_, drop_.DroppedIn(step));
  for (const BlobSpec& blob : model_.blobs) {
    if (blob.frozen) continue;
    BlobState& state = BlobOf(blob.id);
    state.dropped = dropped[static_cast<size_t>(blob.id.value())];
    if (state.dropped) continue;
    state.squares.resize(static_cast<size_t>(blob.num_chunks()));
    SetScale(blob.id, scale);
  }
  PrepareStep();
  if (opened_ >= step_) BeginOpened();
  TakeSubmitted();
}

void UpdateEngineBase::BeginOpened() {
  TakeRows(std::exchange(rows_of_opened_, nullptr));
  CarryDropped();
}

void UpdateEngineBase::TakeSubmitted() {
  for (Submitted& submitted : std::exchange(later_, {})) {
    if (submitted.step != step_) {
      later_.push_back(std::move(submitted));
    } else if (submitted.of_later_uses) {
      GatherLaterUses(submitted.chunk, std::move(submitted.gradient));
    } else {
      Gather(submitted.blob, submitted.chunk, std::move(submitted.gradient));
    }
  }
}

// A dropped blob that a checkpoint has yet to copy is carried over once that is done. The step counts as waiting for
// the checkpoint only when every other blob is made (FinishBlob).
void UpdateEngineBase::CarryDropped() {
  for (const BlobSpec& blob : model_.blobs) {
    if (blob.frozen || !BlobOf(blob.id).dropped) continue;
    if (IsHeld(blob.id)) {
      carries_held_.insert(blob.id);
    } else {
      PushCarryOver(blob.id);
    }
  }
}

std::vector<BlobId> UpdateEngineBase::BlobsToUpdate() const {
  std::vector<BlobId> blobs;
  for (const BlobSpec& blob : model_.blobs) {
    if (!blob.frozen && !BlobOf(blob.id).dropped) blobs.push_back(blob.id);
  }
  return blobs;
}

// ---- what blobs are updated with ----

void UpdateEngineBase::SetScale(BlobId blob, double scale) {
  BlobOf(blob).scale = scale;
  SetScalars(blob, groups(blob).groups);
}

void UpdateEngineBase::SetScalars(BlobId blob, absl::Span<const TensorGroup> groups) {
  BlobState& state = BlobOf(blob);
  const int64_t update = updates_[static_cast<size_t>(blob.value())] + 1;
  auto scalars = std::make_shared<UpdateScalars>(
      ComputeUpdateScalars(run_.optimizer, groups, learning_rate_, update, state.scale));
  scalars->moment_key = MomentKey(model_.config.init_seed, step_, blob);
  state.scalars = std::move(scalars);
}

double UpdateEngineBase::Squares(BlobId blob) const {
  double sum = 0;
  for (const double square : BlobOf(blob).squares) sum += square;
  return sum;
}

double UpdateEngineBase::Norm() const {
  double sum = 0;
  for (const BlobSpec& blob : model_.blobs) sum += Squares(blob.id);
  return std::sqrt(sum) / loss_scale_.value;
}

void UpdateEngineBase::Decide(std::string why_skipped) {
  why_skipped_ = std::move(why_skipped);
  if (run_.precision.loss_scale.has_value()) {
    next_loss_scale_ = NextLossScale(*run_.precision.loss_scale, loss_scale_, !is_skipped());
  }
  is_decided_ = true;
}

std::optional<double> UpdateEngineBase::loss_scale(StepId step) const {
  MutexLock lock(mu_);
  if (step == step_) return loss_scale_.value;
  // Whoever pushes gradients of a step that nobody was given yet may have it made.
  if (step.value() + 1 == step_.value()) return loss_scale_before_.value;
  EPS_CHECK(step > step_);
  // Who was told of step_ by on_step_made may be a step further before the next one is begun here.
  return is_decided_ && step.value() == step_.value() + 1 ? std::optional<double>(next_loss_scale_.value)
                                                          : std::nullopt;
}

// ---- what a checkpoint holds ----

void UpdateEngineBase::Hold(Version version) {
  for (const BlobSpec& blob : model_.blobs) {
    if (!blob.frozen) hold_.Hold(blob.id, version);
  }
}

void UpdateEngineBase::HoldUpdates(Version version) {
  MutexLock lock(mu_);
  EPS_CHECK(version >= ReadVersion(step_));
  Hold(version);
}

bool UpdateEngineBase::TryHoldUpdates(Version version) {
  MutexLock lock(mu_);
  if (version < ReadVersion(step_) || ReadVersion(newest_updated_) >= version) return false;
  Hold(version);
  return true;
}

void UpdateEngineBase::ReleaseUpdate(BlobId blob, Version version) {
  std::optional<UpdateHold::Wait> ended;
  {
    MutexLock lock(mu_);
    if (!hold_.Release(blob, version) || version != ReadVersion(step_) || stopped_) return;
    ended = EndWaitFor(blob);
    if (carries_held_.erase(blob) > 0) {
      PushCarryOver(blob);
    } else {
      BeginReleased(blob);
    }
  }
  if (trace_ == nullptr || !ended.has_value()) return;
  trace_->Add(held_track_, "wait: checkpoint", ended->begin, ended->end, "updates are held for its copy");
}

void UpdateEngineBase::BeginWaitFor(BlobId blob) {
  hold_.BeginWait(blob, std::chrono::steady_clock::now());
  update_is_held_ = true;
}

std::optional<UpdateHold::Wait> UpdateEngineBase::EndWaitFor(BlobId blob) {
  const std::optional<UpdateHold::Wait> wait = hold_.EndWait(blob, std::chrono::steady_clock::now());
  if (!wait.has_value()) return wait;
  step_held_seconds_ += wait->seconds();
  held_seconds_ = held_seconds_ + wait->seconds();  // written under the lock alone
  update_is_held_ = false;
  return wait;
}

// ---- tasks, and the end of what they make ----

void UpdateEngineBase::Push(const TaskName& name, std::function<void()> task) {
  queue_.Push(name.blob.value(), [this, name, task = std::move(task)] {
    if (stopped_) return;
    const auto begin = std::chrono::steady_clock::now();
    task();
    const auto end = std::chrono::steady_clock::now();
    busy_nanos_ += std::chrono::nanoseconds(end - begin).count();
    if (trace_ != nullptr) {
      trace_->Add(trace_->TrackOfThisThread("optimizer"), absl::StrCat(name.what, " ", model_.blob(name.blob).name),
                  begin, end, name.chunk < 0 ? "" : absl::StrCat("chunk ", name.chunk));
    }
  });
}

void UpdateEngineBase::PushCarryOver(BlobId blob) {
  Push({.what = "carry over", .blob = blob}, [this, blob, step = step_] {
    work_.CarryOver(step, blob);
    FinishBlob(blob, NextVersion(step));
  });
}

void UpdateEngineBase::FinishChunk(BlobId blob, int64_t chunk, std::optional<double> squares) {
  Version version;
  {
    MutexLock lock(mu_);
    if (squares.has_value()) SetSquares(blob, chunk, *squares);
    if (++BlobOf(blob).updated < num_chunks(blob)) return;
    version = NextVersion(step_);
  }
  FinishBlob(blob, version);
}

void UpdateEngineBase::FinishBlob(BlobId blob, Version version) {
  on_blob_made_(blob, version);
  StepUpdate update;
  {
    MutexLock lock(mu_);
    // Counted after the call above, so that the step is told last.
    if (++blobs_made_ < blobs_to_make_) {
      if (blobs_made_ + carries_held_.size() < blobs_to_make_) return;
      for (const BlobId held : carries_held_) BeginWaitFor(held);
      return;
    }
    update = EndStep();
  }
  on_step_made_(update);
  MutexLock lock(mu_);
  BeginStep(StepId(update.step.value() + 1));
}

StepUpdate UpdateEngineBase::EndStep() {
  if (!is_skipped()) {
    for (const BlobId blob : BlobsToUpdate()) ++updates_[static_cast<size_t>(blob.value())];
  }
  last_norm_ = Norm();
  return {.step = step_,
          .gradient_norm = last_norm_,
          .learning_rate = learning_rate_,
          .held_seconds = step_held_seconds_,
          .skipped = is_skipped(),
          .why_skipped = why_skipped_,
          .loss_scale = loss_scale_.value,
          .next_loss_scale = next_loss_scale_,
          .updates = updates_};
}

UpdateCounts UpdateEngineBase::counts() const {
  return {.updated_elems = work_.updated_elems(),
          .moved_bytes = work_.moved_bytes(),
          .busy_seconds = 1e-9 * static_cast<double>(busy_nanos_.load()),
          .held_seconds = held_seconds_};
}

// ---- failures ----

void UpdateEngineBase::Fail(absl::Status why) {
  if (!stopped_.exchange(true)) on_failure_(std::move(why));
}

void UpdateEngineBase::FailNonFinite(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient) {
  if (stopped_) return;  // describing reads the gradient once more
  Fail(DivergedError(
      step, absl::StrCat("the gradient of ", DescribeNonFinite(model_.blob(blob), chunk, gradient), " is not finite")));
}

}  // namespace eps::server
