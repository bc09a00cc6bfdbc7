#ifndef EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_BASE_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_BASE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "common/telemetry/trace_log.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_work.h"
#include "eps_server/optimizer/task_queue.h"
#include "eps_server/optimizer/tensor_groups.h"
#include "eps_server/optimizer/unread_rows.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/optimizer/update_hold.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {

// What the engine's modes share: which step is made, what each blob is updated with, what holds updates up, the tasks,
// and the end of a blob and of the step. A mode derives from it and says what becomes of gradients.
//
// A mode's constructor ends with Begin, and its destructor begins with EndTasks, as tasks use its members.
class UpdateEngineBase : public UpdateEngine {
 public:
  ~UpdateEngineBase() override;

  void OpenStep(StepId step, std::shared_ptr<const RowsRead> rows) override;
  void EndReads(StepId step) override;
  void Submit(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) override;
  void SubmitLaterUses(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) override;
  void HoldUpdates(Version version) override;
  bool TryHoldUpdates(Version version) override;
  void ReleaseUpdate(BlobId blob, Version version) override;
  std::optional<double> loss_scale(StepId step) const override;
  bool update_is_held() const override { return update_is_held_; }
  UpdateCounts counts() const override;
  void Stop() override;

 protected:
  using SharedScalars = std::shared_ptr<const UpdateScalars>;
  struct TaskName {
    const char* what;
    BlobId blob;
    int64_t chunk = -1;  // -1: all of the blob
  };

  explicit UpdateEngineBase(Options options);
  // The first step.
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  void EndTasks() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- what a mode does ----
  // A step begins. Nothing of it has come.
  virtual void PrepareStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // OpenStep of the step that is made.
  virtual void TakeRows(std::shared_ptr<const RowsRead> /*rows*/) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // A chunk's whole gradient has come.
  virtual void Gather(BlobId blob, int64_t chunk, ChunkGradient gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // SubmitLaterUses, of a blob for which there is something to be done.
  virtual bool TakesLaterUses(BlobId /*blob*/) const { return false; }
  virtual void GatherLaterUses(int64_t /*chunk*/, ChunkGradient /*gradient*/) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // A whole gradient comes after Stop: what still runs may need what it keeps.
  virtual void GatherStopped(BlobId /*blob*/, int64_t /*chunk*/, ChunkGradient& /*gradient*/)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // Nobody reads the step's version any more.
  virtual void OverwriteVersion() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // What waited for `blob` to be released goes on.
  virtual void BeginReleased(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;

  // ---- what it does that with ----
  bool is_stopped() const { return stopped_; }
  const ModelSpec& model() const { return model_; }
  const RunConfig& run() const { return run_; }
  bool has_trust_ratios() const { return run_.optimizer.rule == OptimizerRule::kLamb; }
  const TensorGroups& groups(BlobId blob) const { return groups_[static_cast<size_t>(blob.value())]; }
  ChunkWork& work() { return work_; }
  const ChunkWork& work() const { return work_; }
  StepId step() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return step_; }
  // Neither frozen nor dropped by the step.
  std::vector<BlobId> BlobsToUpdate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t num_chunks(BlobId blob) const { return model_.blob(blob).num_chunks(); }

  // Of tasks: in the order in which blobs are pulled, whatever came first. Gradients come in the other order, and where
  // the optimizer is behind, the next forward then begins while what it needs last is still updated.
  void Push(const TaskName& name, std::function<void()> task);

  // What the gradient is multiplied by, as far as it is known; the blob's scalars are by it.
  void SetScale(BlobId blob, double scale) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With trust ratios.
  void SetScalars(BlobId blob, absl::Span<const TensorGroup> groups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SharedScalars scalars(BlobId blob) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return BlobOf(blob).scalars; }
  // Of the gradient's sum, unscaled.
  void SetSquares(BlobId blob, int64_t chunk, double squares) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BlobOf(blob).squares[static_cast<size_t>(chunk)] = squares;
  }
  double Squares(BlobId blob) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the step's mean gradient, from what SetSquares was told.
  double Norm() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double step_loss_scale() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return loss_scale_.value; }

  bool IsHeld(BlobId blob) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return hold_.IsHeld(blob, ReadVersion(step_)); }
  // An update could run, but for HoldUpdates.
  void BeginWaitFor(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An update of the step begins: its version can be held no more.
  void NoteUpdate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { newest_updated_ = step_; }

  // Deferred: whether the step is skipped, and why. Call TellDecided without the lock after it.
  void Decide(std::string why_skipped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellDecided() const { on_step_decided_(); }
  bool is_skipped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !why_skipped_.empty(); }
  bool reads_ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reads_ended_ >= step_; }

  // The blob's next version is this one.
  void PushCarryOver(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A chunk is updated. squares: SetSquares'. With its blob's last one the blob is made, with the last blob the step.
  void FinishChunk(BlobId blob, int64_t chunk, std::optional<double> squares = std::nullopt) ABSL_LOCKS_EXCLUDED(mu_);

  // The run has failed: nothing is made any more.
  void Fail(absl::Status why);
  void FailNonFinite(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient);

  mutable Mutex mu_;

 private:
  struct Submitted {
    StepId step;
    BlobId blob;
    int64_t chunk = 0;
    ChunkGradient gradient;
    bool of_later_uses = false;
  };
  struct BlobState {
    std::vector<double> squares;  // of the gradient, by chunk
    int64_t updated = 0;          // chunks
    bool dropped = false;         // by this step
    double scale = 1;             // of the gradient, as far as it is known
    SharedScalars scalars;        // by scale; LAMB: without trust ratios until all is measured
  };

  BlobState& BlobOf(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return blobs_[static_cast<size_t>(blob.value())];
  }
  const BlobState& BlobOf(BlobId blob) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return blobs_[static_cast<size_t>(blob.value())];
  }
  void BeginStep(StepId step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginOpened() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeSubmitted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Hold(Version version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The wait that is over with it, if one is.
  std::optional<UpdateHold::Wait> EndWaitFor(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishBlob(BlobId blob, Version version) ABSL_LOCKS_EXCLUDED(mu_);
  StepUpdate EndStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Fixed after construction.
  const ModelSpec& model_;
  const RunConfig& run_;
  TraceLog* const trace_;  // null: none
  const std::function<void(BlobId, Version)> on_blob_made_;
  const std::function<void()> on_step_decided_;
  const std::function<void(const StepUpdate&)> on_step_made_;
  const std::function<void(absl::Status)> on_failure_;
  const std::vector<TensorGroups> groups_;  // by blob
  const LayerDrop drop_;
  int held_track_ = 0;        // of trace_
  size_t blobs_to_make_ = 0;  // a step, those that it drops too

  ChunkWork work_;
  // Atomic, because tasks use them without the lock.
  std::atomic<bool> stopped_ = false;
  std::atomic<int64_t> busy_nanos_ = 0;
  // Atomic, because others read them without the lock.
  std::atomic<double> held_seconds_ = 0;
  std::atomic<bool> update_is_held_ = false;

  StepId step_ ABSL_GUARDED_BY(mu_);  // the one being made
  StepId opened_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  StepId reads_ended_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  StepId newest_updated_ ABSL_GUARDED_BY(mu_) = StepId(-1);  // of which an update has begun
  std::vector<BlobState> blobs_ ABSL_GUARDED_BY(mu_);
  std::vector<Submitted> later_ ABSL_GUARDED_BY(mu_);                    // of steps after step_
  std::shared_ptr<const RowsRead> rows_of_opened_ ABSL_GUARDED_BY(mu_);  // until that is step_
  UpdateHold hold_ ABSL_GUARDED_BY(mu_);
  double step_held_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<BlobId> carries_held_ ABSL_GUARDED_BY(mu_);  // dropped by step_, held
  size_t blobs_made_ ABSL_GUARDED_BY(mu_) = 0;          // and announced
  double learning_rate_ ABSL_GUARDED_BY(mu_) = 0;
  double last_norm_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> updates_ ABSL_GUARDED_BY(mu_);  // by blob, before step_
  std::string why_skipped_ ABSL_GUARDED_BY(mu_);       // empty: the step is not, or not decided
  bool is_decided_ ABSL_GUARDED_BY(mu_) = false;       // why_skipped_, and next_loss_scale_
  LossScale loss_scale_before_ ABSL_GUARDED_BY(mu_);   // of the step before step_
  LossScale loss_scale_ ABSL_GUARDED_BY(mu_);          // of step_
  LossScale next_loss_scale_ ABSL_GUARDED_BY(mu_);

  bool tasks_ended_ = false;
  TaskQueue queue_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_BASE_H_
