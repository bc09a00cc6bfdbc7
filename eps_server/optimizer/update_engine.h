#ifndef EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "common/telemetry/trace_log.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/optimizer/hold_bytes.h"  // what holding costs
#include "eps_server/optimizer/unread_rows.h"
#include "eps_server/store/store.h"

namespace eps::server {

// What the optimizer made of a step.
struct StepUpdate {
  StepId step;
  double gradient_norm = 0;  // of the step's mean gradient, unscaled, before clipping; may be not finite
  double learning_rate = 0;
  double held_seconds = 0;  // in which an update could have run, but for HoldUpdates
  bool skipped = false;     // the gradient was not finite: weights and moments are unchanged
  std::string why_skipped;  // layer and vnode
  double loss_scale = 1;    // that the step's gradients came multiplied by
  LossScale next_loss_scale;
  std::vector<int64_t> updates;  // by blob, that it has had with this step
};

// What the optimizer has done since it was made; never falls.
struct UpdateCounts {
  int64_t updated_elems = 0;  // parameters, each once per step that updates it
  int64_t moved_bytes = 0;    // that summing and updating had to read and write: gradients, weights, moments
  double busy_seconds = 0;    // of its threads, summing and updating
  double held_seconds = 0;    // StepUpdate's, over all steps
};

// Makes version s + 1 of every blob that is not frozen from version s and the step's gradients, chunk by chunk, on
// oneTBB threads. Frozen ones are nothing to it: they are in no norm and in no callback. Those that a step drops
// (RunConfig::layer_drop) take their version over unchanged as soon as it is open, and are in no norm.
//
// It has three modes (update_modes.h). Eager (no clipping, PER_BLOB, LAGGED): a chunk (PER_BLOB, LAMB: a blob) is updated as soon as its
// gradient is in, after a pass for the norms of each; of several that wait the one that is pulled first comes first.
// Rows of the token table that no token of the step reads do not wait for the embedding's gradient (unread_rows.h). A
// gradient that is not finite ends the run: on_failure names step, layer and vnode. Deferred (EXACT; FP16, which scales
// the loss): a chunk's gradient is summed into a buffer of 4 bytes per parameter as soon as it is in; once all are, the
// global norm is known and blobs are updated in pull order, by the gradient divided by the step's loss scale. A step
// with a gradient that is not finite is skipped whole.
//
// Bits: norms are sums of squares in fp64: 16 logical lanes, lanes in order, (LAMB: a chunk's part of a tensor,) chunks
// in order, blobs in order. Nothing depends on threads, arrival or vector width. Optimizer step: bias corrections count
// the updates that the blob had, without skipped steps, as PyTorch's AMP does, and without those that dropped it, as
// PyTorch does for a parameter without a gradient; the learning rate follows the step.
//
// Threads: all methods are safe and return at once. Callbacks come without a lock, from the engine's threads.
class UpdateEngine {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // these outlive the engine
    const RunConfig* run = nullptr;
    Store* store = nullptr;
    ChunkWitness* witness = nullptr;  // null: none
    TraceLog* trace = nullptr;  // of each chunk's sum and update, by thread, and of what holds updates; null: none
    int threads = 1;            // that compute
    StepId first_step;          // the next step to be made
    int64_t skipped_steps = 0;  // before first_step
    // By blob, those before first_step; empty: each had one in every step that was not skipped.
    std::vector<int64_t> updates;
    double last_norm = 0;  // of the step before first_step, for LAGGED; -1: it has none
    LossScale loss_scale;  // of first_step
    // Version `version` of `blob` is made; the callee publishes it.
    std::function<void(BlobId, Version)> on_blob_made;
    // Deferred: whether the step is skipped is decided, and with it the next step's loss scale.
    std::function<void()> on_step_decided;
    // After the on_blob_made of every blob that is not frozen.
    std::function<void(const StepUpdate&)> on_step_made;
    // At most once; nothing is made after it.
    std::function<void(absl::Status)> on_failure;
  };
  // Errors: FAILED_PRECONDITION this processor's vectors lack fused multiply-add ·
  //         RESOURCE_EXHAUSTED no memory to hold gradients
  static absl::StatusOr<std::unique_ptr<UpdateEngine>> Create(Options options);
  // Waits for what is running; what is queued is dropped.
  virtual ~UpdateEngine() = default;

  // The step is open: nobody reads the version before `step`'s any more, and blobs that it drops go on. Needed of every
  // step where some are dropped, or whose `rows` are known, before its gradients come.
  // rows: of the token table, those that the step's tokens read; null: not known. The others are updated before the
  // embedding's gradient is there (RunConfig::updates_unread_rows_early); where that is not zero in them, the run ends.
  virtual void OpenStep(StepId step, std::shared_ptr<const RowsRead> rows = nullptr) = 0;
  // No part of `step` will be run again, so nobody reads its version any more. With precision.wire_versions: 1 deferred
  // updates overwrite that version: they begin when all of the step's gradients are in and this was called, whichever
  // comes last. Call it once for each step, in order.
  virtual void EndReads(StepId step) = 0;
  // The gradient of a chunk is complete. Chunks of a step wait until the step before is made.
  virtual void Submit(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) = 0;
  // What every use of a chunk but the first gives is complete. Does something only before the chunk's Submit, and no
  // harm after it. Its operands must live until the gradient of that Submit is destroyed.
  virtual void SubmitLaterUses(StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) = 0;

  // Blobs at `version` are not updated to version + 1 before ReleaseUpdate; call before gradients
  // of step `version` come.
  virtual void HoldUpdates(Version version) = 0;
  // The same for a step whose gradients may have come: false, and nothing is held, once an update of that step has
  // begun or the step is made, so that `version` is whole no more. A blob that the step drops is whole in both, for a
  // checkpoint.
  virtual bool TryHoldUpdates(Version version) = 0;
  virtual void ReleaseUpdate(BlobId blob, Version version) = 0;
  // What gradients of `step`, the one being made, the one before or a later one, are to be multiplied by; nullopt as
  // long as it depends on a step that is not decided, or not begun.
  virtual std::optional<double> loss_scale(StepId step) const = 0;
  // Whether an update waits for nothing but its ReleaseUpdate.
  virtual bool update_is_held() const = 0;

  virtual UpdateCounts counts() const = 0;

  // Nothing more is made; tasks that run end first or later, on their own.
  virtual void Stop() = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_ENGINE_H_
