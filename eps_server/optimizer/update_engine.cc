#include "eps_server/optimizer/update_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/model/layer_drop.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/chunk_work.h"
#include "eps_server/optimizer/held_gradients.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "eps_server/optimizer/nonfinite_gradient.h"
#include "eps_server/optimizer/schedule.h"
#include "eps_server/optimizer/task_queue.h"
#include "eps_server/optimizer/tensor_groups.h"
#include "eps_server/optimizer/unread_rows.h"
#include "eps_server/optimizer/update_hold.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {
namespace {

constexpr double kClipEpsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_

double ClipScale(const OptimizerConfig& optimizer, double norm) {
  return std::min(1.0, optimizer.clip_norm / (norm + kClipEpsilon));
}

using SharedScalars = std::shared_ptr<const UpdateScalars>;

class UpdateEngineImpl final : public UpdateEngine {
 public:
  UpdateEngineImpl(Options options, HeldGradients held_gradients)
      : model_(*options.model),
        run_(*options.run),
        trace_(options.trace),
        clip_(options.run->optimizer.clip),
        has_trust_ratios_(options.run->optimizer.rule == OptimizerRule::kLamb),
        defers_(options.run->defers_updates()),
        on_blob_made_(std::move(options.on_blob_made)),
        on_step_decided_(std::move(options.on_step_decided)),
        on_step_made_(std::move(options.on_step_made)),
        on_failure_(std::move(options.on_failure)),
        groups_(GroupTensors(model_, run_.optimizer)),
        table_(run_.updates_unread_rows_early() ? TokenTable(model_) : std::nullopt),
        held_gradients_(std::move(held_gradients)),
        drop_(model_, run_.layer_drop),
        work_(model_, *options.store, groups_, options.witness),
        last_norm_(options.last_norm),
        updates_(std::move(options.updates)),
        next_loss_scale_(options.loss_scale),
        queue_(options.threads) {
    for (const BlobSpec& blob : model_.blobs) blobs_to_make_ += blob.frozen ? 0 : 1;
    if (trace_ != nullptr) held_track_ = trace_->AddTrack("updates held");
    MutexLock lock(mu_);
    if (updates_.empty()) updates_.resize(model_.blobs.size(), options.first_step.value() - options.skipped_steps);
    EPS_CHECK(updates_.size() == model_.blobs.size());
    BeginStep(options.first_step);
  }

  ~UpdateEngineImpl() override { stopped_ = true; }  // then queue_ waits for what runs

  void OpenStep(StepId step, std::shared_ptr<const RowsRead> rows) override {
    if (stopped_) return;
    MutexLock lock(mu_);
    EPS_CHECK(step > opened_);
    opened_ = step;
    if (table_.has_value()) rows_of_opened_ = std::move(rows);
    if (step == step_) BeginOpened();
  }

  void EndReads(StepId step) override {
    if (stopped_) return;
    MutexLock lock(mu_);
    EPS_CHECK(step > reads_ended_);
    reads_ended_ = step;
    if (step == step_ && std::exchange(waits_for_readers_, false)) BeginDeferredUpdates();
  }

  void Submit(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) override {
    MutexLock lock(mu_);
    if (stopped_) {
      // Of the table: an early update that runs reads what this gradient keeps, until it is over.
      if (table_.has_value() && blob == table_->blob && step == step_) unread_rows_.Arrive(chunk, gradient);
      return;
    }
    EPS_CHECK(step >= step_);
    if (step > step_) {
      later_.push_back({step, blob, chunk, std::move(gradient)});
    } else {
      Gather(blob, chunk, std::move(gradient));
    }
  }

  void SubmitLaterUses(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) override {
    if (stopped_ || !table_.has_value() || blob != table_->blob) return;
    MutexLock lock(mu_);
    if (step > step_) {
      later_.push_back({step, blob, chunk, std::move(gradient), /*of_later_uses=*/true});
    } else if (step == step_) {
      GatherUnread(chunk, std::move(gradient));
    }
  }

  void HoldUpdates(Version version) override {
    MutexLock lock(mu_);
    EPS_CHECK(version >= ReadVersion(step_));
    Hold(version);
  }

  bool TryHoldUpdates(Version version) override {
    MutexLock lock(mu_);
    if (version < ReadVersion(step_) || ReadVersion(newest_updated_) >= version) return false;
    Hold(version);
    return true;
  }

  void ReleaseUpdate(BlobId blob, Version version) override {
    std::optional<UpdateHold::Wait> ended;
    {
      MutexLock lock(mu_);
      if (!hold_.Release(blob, version) || version != ReadVersion(step_) || stopped_) return;
      ended = EndWaitFor(blob);
      BeginReleased(blob);
    }
    if (trace_ == nullptr || !ended.has_value()) return;
    trace_->Add(held_track_, "wait: checkpoint", ended->begin, ended->end, "updates are held for its copy");
  }

  UpdateCounts counts() const override {
    return {.updated_elems = work_.updated_elems(),
            .moved_bytes = work_.moved_bytes(),
            .busy_seconds = 1e-9 * static_cast<double>(busy_nanos_.load()),
            .held_seconds = held_seconds_};
  }
  std::optional<double> loss_scale(StepId step) const override {
    MutexLock lock(mu_);
    if (step == step_) return loss_scale_.value;
    // Whoever pushes gradients of a step that nobody was given yet may have it made.
    if (step.value() + 1 == step_.value()) return loss_scale_before_.value;
    EPS_CHECK(step > step_);
    // Who was told of step_ by on_step_made may be a step further before the next one is begun here.
    return is_decided_ && step.value() == step_.value() + 1 ? std::optional<double>(next_loss_scale_.value)
                                                            : std::nullopt;
  }
  bool update_is_held() const override { return update_is_held_; }

  void Stop() override {
    stopped_ = true;
    queue_.Close();
  }

 private:
  struct Submitted {
    StepId step;
    BlobId blob;
    int64_t chunk = 0;
    ChunkGradient gradient;
    bool of_later_uses = false;
  };
  struct BlobState {
    std::vector<double> squares;                             // of the gradient, by chunk
    std::vector<std::vector<StepSquares>> step_squares;      // LAMB: by chunk and range
    std::vector<ChunkGradient> kept;                         // by chunk, PER_BLOB and LAMB unless deferred
    std::vector<std::pair<int64_t, ChunkGradient>> blocked;  // eager: wait for ReleaseUpdate
    int64_t gathered = 0;                                    // chunks whose norm is known, PER_BLOB
    int64_t measured = 0;                                    // chunks whose step_squares are there
    int64_t updated = 0;                                     // chunks
    bool dropped = false;                                    // by this step
    bool ready = false;     // scalars are known, updates may run unless HoldUpdates says no (where not eager)
    double scale = 1;       // of the gradient, as far as it is known
    SharedScalars scalars;  // by scale; LAMB: without trust ratios until all is measured
    double Squares() const {
      double sum = 0;
      for (const double square : squares) sum += square;
      return sum;
    }
  };

  bool IsEager() const { return !defers_ && clip_ != ClipMode::kPerBlob && !has_trust_ratios_; }
  void Hold(Version version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const BlobSpec& blob : model_.blobs) {
      if (!blob.frozen) hold_.Hold(blob.id, version);
    }
  }
  bool IsHeld(BlobId blob) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return hold_.IsHeld(blob, ReadVersion(step_)); }
  void SetScale(BlobId blob, double scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    blobs_[blob.value()].scale = scale;
    SetScalars(blob, groups_[blob.value()].groups);
  }
  void SetScalars(BlobId blob, absl::Span<const TensorGroup> groups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BlobState& state = blobs_[blob.value()];
    auto scalars = std::make_shared<UpdateScalars>(
        ComputeUpdateScalars(run_.optimizer, groups, learning_rate_, updates_[blob.value()] + 1, state.scale));
    scalars->moment_key = MomentKey(model_.config.init_seed, step_, blob);
    state.scalars = std::move(scalars);
  }

  void BeginStep(StepId step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    step_ = step;
    learning_rate_ = LearningRate(run_.optimizer, run_.steps, step);
    scale_ = clip_ == ClipMode::kLagged && step.value() > 0 ? ClipScale(run_.optimizer, last_norm_) : 1;
    skipped_ = false;
    loss_scale_before_ = std::exchange(loss_scale_, next_loss_scale_);
    is_decided_ = !defers_;
    nonfinite_.clear();
    chunks_to_gather_ = 0;
    gathered_ = blobs_made_ = 0;
    step_held_seconds_ = 0;
    blobs_.assign(model_.blobs.size(), {});
    const std::vector<bool> dropped = DroppedBlobs(model_, drop_.DroppedIn(step));
    for (const BlobSpec& blob : model_.blobs) {
      if (blob.frozen) continue;
      BlobState& state = blobs_[blob.id.value()];
      state.dropped = dropped[static_cast<size_t>(blob.id.value())];
      if (state.dropped) continue;
      chunks_to_gather_ += blob.num_chunks();
      state.squares.resize(static_cast<size_t>(blob.num_chunks()));
      SetScale(blob.id, scale_);
      if (!defers_ && !IsEager()) state.kept.resize(static_cast<size_t>(blob.num_chunks()));
      if (has_trust_ratios_) state.step_squares.resize(static_cast<size_t>(blob.num_chunks()));
    }
    unread_rows_ = UnreadRows();
    any_came_ = false;
    if (opened_ >= step_) BeginOpened();
    std::vector<Submitted> later = std::exchange(later_, {});
    for (Submitted& submitted : later) {
      if (submitted.step != step_) {
        later_.push_back(std::move(submitted));
      } else if (submitted.of_later_uses) {
        GatherUnread(submitted.chunk, std::move(submitted.gradient));
      } else {
        Gather(submitted.blob, submitted.chunk, std::move(submitted.gradient));
      }
    }
  }
  void BeginOpened() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    unread_rows_ = UnreadRows(std::exchange(rows_of_opened_, nullptr));
    CarryDropped();
  }

  // A dropped blob that a checkpoint has yet to copy is carried over once that is done. The step counts as waiting for
  // the checkpoint only when every other blob is made (FinishBlob).
  void CarryDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const BlobSpec& blob : model_.blobs) {
      if (blob.frozen || !blobs_[blob.id.value()].dropped) continue;
      if (IsHeld(blob.id)) {
        carries_held_.insert(blob.id);
      } else {
        PushCarryOver(blob.id);
      }
    }
  }
  void PushCarryOver(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Push({.what = "carry over", .blob = blob}, [this, blob, step = step_] { CarryOver(step, blob); });
  }

  // A chunk's whole gradient has come. Starts what its mode does first: sum (deferred), measure (PER_BLOB, LAMB) or
  // update (eager; kept in `blocked` while a checkpoint holds the blob).
  void Gather(BlobId blob, int64_t chunk, ChunkGradient gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(any_came_, true)) BeginGradients();
    if (!IsEager()) {
      // A std::function must be copyable, so the gradient goes behind a pointer.
      Push({defers_ ? "sum" : "measure", blob, chunk},
           [this, step = step_, blob, chunk, scalars = blobs_[blob.value()].scalars,
            shared = std::make_shared<ChunkGradient>(std::move(gradient))] {
             if (defers_) {
               SumDeferred(step, blob, chunk, *shared);
             } else if (clip_ == ClipMode::kPerBlob) {
               MeasureGradient(step, blob, chunk, *shared);
             } else {
               MeasureArrived(step, blob, chunk, *shared, *scalars);
             }
           });
    } else if (IsHeld(blob)) {
      blobs_[blob.value()].blocked.emplace_back(chunk, std::move(gradient));
      BeginWaitFor(blob);
    } else {
      PushEager(blob, chunk, std::move(gradient));
    }
  }

  void PushEager(BlobId blob, int64_t chunk, ChunkGradient gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    newest_updated_ = step_;
    std::shared_ptr<const RowsRead> rows;  // if the others are updated already
    if (table_.has_value() && blob == table_->blob) {
      const UnreadRows::Arrival arrival = unread_rows_.Arrive(chunk, gradient);
      if (arrival == UnreadRows::Arrival::kParked) return;
      if (arrival == UnreadRows::Arrival::kRest) rows = unread_rows_.rows();
    }
    Push({"update", blob, chunk}, [this, blob, chunk, scalars = blobs_[blob.value()].scalars, step = step_, rows,
                                   shared = std::make_shared<ChunkGradient>(std::move(gradient))] {
      UpdateEager(step, blob, chunk, *shared, *scalars, rows.get());
    });
  }

  // The first gradient of the step came: backward has begun, beside which updates belong. Rows of a table that no head
  // shares need nothing else.
  void BeginGradients() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!table_.has_value() || model_.blob(table_->blob).uses.size() > 1) return;
    for (int64_t chunk = 0; chunk < model_.blob(table_->blob).num_chunks(); ++chunk) GatherUnread(chunk, {});
  }
  // of_head: WithoutEmbedding's. While a checkpoint holds the blob nothing is early: all is updated with the whole
  // gradient.
  void GatherUnread(int64_t chunk, ChunkGradient of_head) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const BlobId blob = table_->blob;
    if (IsHeld(blob) || of_head.nonfinite_vnode >= 0 || !unread_rows_.Queue(chunk)) return;
    newest_updated_ = step_;
    // The table is pulled first, so before all others, which wait for longer without harm; what has not begun when the
    // whole gradient comes is updated with it.
    Push({"update unread rows of", blob, chunk},
         [this, chunk, step = step_, scalars = blobs_[blob.value()].scalars, rows = unread_rows_.rows(),
          of_head = std::make_shared<const ChunkGradient>(std::move(of_head))] {
           UpdateUnread(step, chunk, *of_head, *scalars, *rows);
         });
  }

  struct TaskName {
    const char* what;
    BlobId blob;
    int64_t chunk = -1;  // -1: all of the blob
  };
  // What is pulled first comes first: gradients come in the other order, and where the optimizer is behind, the next
  // forward then begins while what it needs last is still updated.
  void Push(const TaskName& name, std::function<void()> task) {
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

  // ---- tasks; they run without the lock ----

  // One pass: sum, norm, update. rows: of the token table, whose other rows have been updated before; else null.
  void UpdateEager(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient, const UpdateScalars& scalars,
                   const RowsRead* rows) {
    if (gradient.nonfinite_vnode >= 0) return FailNonFinite(blob, chunk, gradient);
    double squares = 0;
    work_.ShowSum(step, blob, chunk, gradient);
    if (rows == nullptr) {
      work_.Update(step, blob, chunk, gradient, scalars, &squares);
    } else if (!UpdateRest(step, chunk, gradient, scalars, *rows, &squares)) {
      return;
    }
    if (!std::isfinite(squares)) return FailNonFinite(blob, chunk, gradient);
    gradient = {};
    work_.ShowUpdated(step, blob, chunk);
    FinishChunk(blob, [&](BlobState& state) { state.squares[chunk] = squares; });
  }

  // Of the token table: rows to which the embedding adds nothing. Of a chunk that has too few of them nothing is early.
  void UpdateUnread(StepId step, int64_t chunk, const ChunkGradient& of_head, const UpdateScalars& scalars,
                    const RowsRead& rows) {
    const BlobId blob = table_->blob;
    const ChunkParts parts = TablePartsOf(chunk, rows);
    if (!PaysEarly(work_.State(step, blob, chunk), of_head, NumElems(parts.unread))) return;
    {
      MutexLock lock(mu_);
      if (step != step_ || !unread_rows_.Begin(chunk)) return;
    }
    work_.UpdateRanges(step, blob, chunk, WithoutEmbedding(of_head), parts.unread, scalars);
    MutexLock lock(mu_);
    std::optional<ChunkGradient> whole = unread_rows_.End(chunk);
    if (whole.has_value()) PushEager(blob, chunk, *std::move(whole));
  }
  // Whether what is updated early saves more at the step's end than it costs there: contributions are read once more
  // for the rest, and the embedding's to see that they are zero. There are as many of these as of the head's, or one.
  bool PaysEarly(const ChunkState& state, const ChunkGradient& of_head, int64_t num_unread) const {
    const int64_t num_rest = state.num_elems - num_unread;
    const int64_t head = GradientBytes(of_head, 1);
    const int64_t embedding = std::max<int64_t>(head, SizeOf(run_.precision.gradients));
    return StateBytes(state, num_unread) > num_rest * (head + embedding) + num_unread * embedding;
  }
  // Then, with the whole gradient, the others. The squares are those of all rows, in their order. False: the run has
  // failed.
  bool UpdateRest(StepId step, int64_t chunk, const ChunkGradient& gradient, const UpdateScalars& scalars,
                  const RowsRead& rows, double* squares) {
    const BlobId blob = table_->blob;
    const ChunkParts parts = TablePartsOf(chunk, rows);
    if (const std::optional<NonzeroValue> wrong = NonzeroOfEmbedding(gradient, parts.unread); wrong.has_value()) {
      FailNonzero(step, chunk, *wrong);
      return false;
    }
    *squares = work_.SumAgain(blob, chunk, gradient);
    work_.UpdateRanges(step, blob, chunk, gradient, parts.rest, scalars);
    return true;
  }
  ChunkParts TablePartsOf(int64_t chunk, const RowsRead& rows) const {
    const BlobId blob = table_->blob;
    return PartsOf(model_.blob(blob), *table_->tensor, chunk, work_.RangesOf(blob, chunk), rows);
  }

  // PER_BLOB: the pass that finds the blob's norm.
  void MeasureGradient(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient) {
    const double squares = work_.Sum(step, blob, chunk, gradient, nullptr);
    if (gradient.nonfinite_vnode >= 0 || !std::isfinite(squares)) return FailNonFinite(blob, chunk, gradient);
    MutexLock lock(mu_);
    BlobState& state = blobs_[blob.value()];
    state.squares[chunk] = squares;
    state.kept[chunk] = std::move(gradient);
    if (++state.gathered < model_.blob(blob).num_chunks()) return;
    const double scale = ClipScale(run_.optimizer, std::sqrt(state.Squares()));
    SetScale(blob, scale);
    if (has_trust_ratios_) {
      PushMeasures(blob);
    } else {
      MakeReady(blob);
    }
  }

  // LAMB, whose scale is known from the start: the gradient's norm, and that of the step.
  void MeasureArrived(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient, const UpdateScalars& scalars) {
    if (gradient.nonfinite_vnode >= 0) return FailNonFinite(blob, chunk, gradient);
    work_.ShowSum(step, blob, chunk, gradient);
    double squares = 0;
    std::vector<StepSquares> step_squares = work_.Measure(step, blob, chunk, gradient, scalars, &squares);
    if (!std::isfinite(squares)) return FailNonFinite(blob, chunk, gradient);
    MutexLock lock(mu_);
    BlobState& state = blobs_[blob.value()];
    state.squares[chunk] = squares;
    state.kept[chunk] = std::move(gradient);
    NoteMeasured(blob, chunk, std::move(step_squares));
  }

  // LAMB, PER_BLOB or deferred.
  void MeasureGathered(StepId step, BlobId blob, int64_t chunk, const UpdateScalars& scalars) {
    std::vector<StepSquares> step_squares =
        work_.Measure(step, blob, chunk, Gathered(blob, chunk, /*is_last=*/false), scalars, nullptr);
    MutexLock lock(mu_);
    NoteMeasured(blob, chunk, std::move(step_squares));
  }

  // Deferred: the gradient's memory is free after this.
  void SumDeferred(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient) {
    const double squares = work_.Sum(step, blob, chunk, gradient, held_gradients_.Chunk(blob, chunk));
    std::string nonfinite;
    if (gradient.nonfinite_vnode >= 0 || !std::isfinite(squares))
      nonfinite = DescribeNonFinite(model_.blob(blob), chunk, gradient);
    gradient = {};
    {
      MutexLock lock(mu_);
      if (!nonfinite.empty() && (nonfinite_.empty() || nonfinite < nonfinite_)) nonfinite_ = nonfinite;
      blobs_[blob.value()].squares[chunk] = squares;
      if (++gathered_ < chunks_to_gather_) return;
      DecideDeferredStep();
    }
    on_step_decided_();
  }

  void DecideDeferredStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const double norm = Norm();
    skipped_ = !nonfinite_.empty();
    scale_ = skipped_ || clip_ == ClipMode::kNone ? 1 : ClipScale(run_.optimizer, norm);
    if (run_.precision.loss_scale.has_value()) {
      next_loss_scale_ = NextLossScale(*run_.precision.loss_scale, loss_scale_, !skipped_);
    }
    is_decided_ = true;
    waits_for_readers_ = run_.precision.wire_versions == 1 && reads_ended_ < step_;
    if (!waits_for_readers_) BeginDeferredUpdates();
  }

  void BeginDeferredUpdates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const BlobSpec& blob : model_.blobs) {  // pull order: the next forward waits for the first layer first
      if (blob.frozen || blobs_[blob.id.value()].dropped) continue;
      SetScale(blob.id, scale_ / loss_scale_.value);
      if (has_trust_ratios_ && !skipped_) {
        to_measure_.push_back(blob.id);
      } else {
        MakeReady(blob.id);
      }
    }
    // Two, so that threads are busy when the first is measured; its updates come before the third is.
    MeasureNext();
    MeasureNext();
  }

  // Deferred LAMB, in pull order.
  void MeasureNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (to_measure_.empty()) return;
    const BlobId blob = to_measure_.front();
    to_measure_.pop_front();
    PushMeasures(blob);
  }
  void PushMeasures(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
      Push({"measure", blob, chunk}, [this, blob, chunk, step = step_, scalars = blobs_[blob.value()].scalars] {
        MeasureGathered(step, blob, chunk, *scalars);
      });
    }
  }

  // Norms are summed chunk by chunk, a chunk's ranges in order.
  void NoteMeasured(BlobId blob, int64_t chunk, std::vector<StepSquares> squares) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BlobState& state = blobs_[blob.value()];
    state.step_squares[chunk] = std::move(squares);
    if (++state.measured < model_.blob(blob).num_chunks()) return;
    const TensorGroups& of_blob = groups_[blob.value()];
    std::vector<StepSquares> of_group(of_blob.groups.size());
    for (size_t c = 0; c < of_blob.ranges.size(); ++c) {
      for (size_t r = 0; r < of_blob.ranges[c].size(); ++r) {
        StepSquares& sum = of_group[static_cast<size_t>(of_blob.ranges[c][r].group)];
        sum.weights += state.step_squares[c][r].weights;
        sum.step += state.step_squares[c][r].step;
      }
    }
    std::vector<TensorGroup> groups = of_blob.groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!of_blob.has_trust_ratio[g]) continue;
      groups[g].learning_rate_scale *= TrustRatio(of_group[g], run_.optimizer.max_trust_ratio);
    }
    SetScalars(blob, groups);
    MakeReady(blob);
    MeasureNext();
  }

  void MakeReady(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    blobs_[blob.value()].ready = true;
    if (!IsHeld(blob)) return PushUpdates(blob);
    BeginWaitFor(blob);
  }

  // An update could run, but for HoldUpdates.
  void BeginWaitFor(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    hold_.BeginWait(blob, std::chrono::steady_clock::now());
    update_is_held_ = true;
  }
  // The wait that is over with it, if one is.
  std::optional<UpdateHold::Wait> EndWaitFor(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::optional<UpdateHold::Wait> wait = hold_.EndWait(blob, std::chrono::steady_clock::now());
    if (!wait.has_value()) return wait;
    step_held_seconds_ += wait->seconds();
    held_seconds_ = held_seconds_ + wait->seconds();  // written under the lock alone
    update_is_held_ = false;
    return wait;
  }

  void BeginReleased(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BlobState& state = blobs_[blob.value()];
    if (carries_held_.erase(blob) > 0) return PushCarryOver(blob);
    if (!IsEager() && state.ready) return PushUpdates(blob);
    for (auto& [chunk, gradient] : std::exchange(state.blocked, {})) PushEager(blob, chunk, std::move(gradient));
  }

  void PushUpdates(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    newest_updated_ = step_;
    if (skipped_) return PushCarryOver(blob);
    for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
      Push({"update", blob, chunk}, [this, blob, chunk, step = step_, scalars = blobs_[blob.value()].scalars] {
        UpdateGathered(step, blob, chunk, *scalars);
      });
    }
  }

  // The next version is this one.
  void CarryOver(StepId step, BlobId blob) {
    work_.CarryOver(step, blob);
    FinishChunk(blob, [&](BlobState& state) { state.updated = model_.blob(blob).num_chunks() - 1; });
  }

  // The gradient of a chunk that a pass before has kept; `is_last`: nobody needs it after this.
  ChunkGradient Gathered(BlobId blob, int64_t chunk, bool is_last) {
    if (defers_) {
      const auto* sum = reinterpret_cast<const std::byte*>(held_gradients_.Chunk(blob, chunk));
      return {.operands = {{Dtype::kF32, sum, {}, 0}}, .program = {{SumOp::Kind::kLoad, 0}}};
    }
    MutexLock lock(mu_);
    ChunkGradient& kept = blobs_[blob.value()].kept[chunk];
    return is_last ? std::exchange(kept, {}) : kept;
  }

  // The last pass, where it is not the only one. Contributions are given back without the lock, and before the blob is
  // told.
  void UpdateGathered(StepId step, BlobId blob, int64_t chunk, const UpdateScalars& scalars) {
    work_.Update(step, blob, chunk, Gathered(blob, chunk, /*is_last=*/true), scalars, nullptr);
    work_.ShowUpdated(step, blob, chunk);
    FinishChunk(blob, [](BlobState&) {});
  }

  template <typename Note>
  void FinishChunk(BlobId blob, Note note) {
    Version version;
    {
      MutexLock lock(mu_);
      BlobState& state = blobs_[blob.value()];
      note(state);
      if (++state.updated < model_.blob(blob).num_chunks()) return;
      version = NextVersion(step_);
    }
    on_blob_made_(blob, version);
    FinishBlob();
  }

  void FinishBlob() {
    StepUpdate update;
    {
      MutexLock lock(mu_);
      // Counted after the call above, so that the step is told last.
      if (++blobs_made_ < blobs_to_make_) {
        if (blobs_made_ + carries_held_.size() < blobs_to_make_) return;
        for (const BlobId blob : carries_held_) BeginWaitFor(blob);
        return;
      }
      for (const BlobSpec& blob : model_.blobs) {
        const bool updated = !skipped_ && !blob.frozen && !blobs_[blob.id.value()].dropped;
        updates_[blob.id.value()] += updated ? 1 : 0;
      }
      update = {.step = step_,
                .gradient_norm = Norm(),
                .learning_rate = learning_rate_,
                .held_seconds = step_held_seconds_,
                .skipped = skipped_,
                .why_skipped = nonfinite_,
                .loss_scale = loss_scale_.value,
                .next_loss_scale = next_loss_scale_,
                .updates = updates_};
      last_norm_ = update.gradient_norm;
    }
    on_step_made_(update);
    MutexLock lock(mu_);
    BeginStep(StepId(update.step.value() + 1));
  }

  double Norm() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    double sum = 0;
    for (const BlobState& state : blobs_) sum += state.Squares();
    return std::sqrt(sum) / loss_scale_.value;
  }

  void FailNonFinite(BlobId blob, int64_t chunk, const ChunkGradient& gradient) {
    if (stopped_.exchange(true)) return;
    int64_t step = 0;
    {
      MutexLock lock(mu_);
      step = step_.value();
    }
    on_failure_(absl::OutOfRangeError(
        absl::StrCat("step ", step, ": the gradient of ", DescribeNonFinite(model_.blob(blob), chunk, gradient),
                     " is not finite; lower optimizer.schedule.peak, or warm up longer")));
  }

  void FailNonzero(StepId step, int64_t chunk, const NonzeroValue& wrong) {
    if (stopped_.exchange(true)) return;
    const TensorSpec& table = *table_->tensor;
    const int64_t row = (chunk * kChunkElems + wrong.elem - table.offset_elems) / table.shape[1];
    on_failure_(
        absl::InternalError(absl::StrCat("step ", step.value(), ": the embedding's gradient of ", table.name, ", row ",
                                         row, ": not zero, though no token of the step reads it; from vnodes ",
                                         DebugString(wrong.node), ", whose worker computes it wrongly")));
  }

  // Fixed after construction.
  const ModelSpec& model_;
  const RunConfig& run_;
  TraceLog* const trace_;  // null: none
  const ClipMode clip_;
  const bool has_trust_ratios_;
  const bool defers_;
  const std::function<void(BlobId, Version)> on_blob_made_;
  const std::function<void()> on_step_decided_;
  const std::function<void(const StepUpdate&)> on_step_made_;
  const std::function<void(absl::Status)> on_failure_;
  const std::vector<TensorGroups> groups_;  // by blob
  const std::optional<BlobTensor> table_;   // of tokens, if some of it may be updated early
  int held_track_ = 0;                      // of trace_
  size_t blobs_to_make_ = 0;                // a step, those that it drops too
  const HeldGradients held_gradients_;
  const LayerDrop drop_;

  ChunkWork work_;
  // Atomic, because tasks use them without the lock.
  std::atomic<bool> stopped_ = false;
  std::atomic<int64_t> busy_nanos_ = 0;
  // Atomic, because others read them without the lock.
  std::atomic<double> held_seconds_ = 0;
  std::atomic<bool> update_is_held_ = false;

  mutable Mutex mu_;
  StepId step_ ABSL_GUARDED_BY(mu_);  // the one being made
  StepId opened_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  StepId reads_ended_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  // All of a deferred step is in, and it may not overwrite weights yet.
  bool waits_for_readers_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<BlobState> blobs_ ABSL_GUARDED_BY(mu_);
  std::vector<Submitted> later_ ABSL_GUARDED_BY(mu_);
  bool any_came_ ABSL_GUARDED_BY(mu_) = false;                           // of step_'s gradients
  UnreadRows unread_rows_ ABSL_GUARDED_BY(mu_);                          // of table_, in step_
  std::shared_ptr<const RowsRead> rows_of_opened_ ABSL_GUARDED_BY(mu_);  // until that is step_
  StepId newest_updated_ ABSL_GUARDED_BY(mu_) = StepId(-1);              // of which an update has begun
  UpdateHold hold_ ABSL_GUARDED_BY(mu_);
  double step_held_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<BlobId> carries_held_ ABSL_GUARDED_BY(mu_);  // dropped by step_, held
  int64_t chunks_to_gather_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t gathered_ ABSL_GUARDED_BY(mu_) = 0;  // chunks, deferred
  std::deque<BlobId> to_measure_ ABSL_GUARDED_BY(mu_);
  size_t blobs_made_ ABSL_GUARDED_BY(mu_) = 0;    // and announced
  std::string nonfinite_ ABSL_GUARDED_BY(mu_);    // what makes a deferred step be skipped
  bool is_decided_ ABSL_GUARDED_BY(mu_) = false;  // whether step_ is skipped, and next_loss_scale_
  double learning_rate_ ABSL_GUARDED_BY(mu_) = 0;
  double scale_ ABSL_GUARDED_BY(mu_) = 1;
  bool skipped_ ABSL_GUARDED_BY(mu_) = false;
  double last_norm_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> updates_ ABSL_GUARDED_BY(mu_);  // by blob, before step_
  LossScale loss_scale_before_ ABSL_GUARDED_BY(mu_);   // of the step before step_
  LossScale loss_scale_ ABSL_GUARDED_BY(mu_);          // of step_
  LossScale next_loss_scale_ ABSL_GUARDED_BY(mu_);

  TaskQueue queue_;  // last: its destructor waits for tasks that use all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateEngine>> UpdateEngine::Create(Options options) {
  EPS_CHECK(options.model != nullptr && options.run != nullptr && options.store != nullptr);
  EPS_CHECK(options.threads >= 1 && options.on_blob_made && options.on_step_made && options.on_failure);
  EPS_CHECK(options.on_step_decided || !options.run->defers_updates());
  EPS_RETURN_IF_ERROR(CheckVectorUnit());
  EPS_ASSIGN_OR_RETURN(HeldGradients held_gradients, HeldGradients::Map(*options.model, *options.run));
  return std::make_unique<UpdateEngineImpl>(std::move(options), std::move(held_gradients));
}

}  // namespace eps::server
