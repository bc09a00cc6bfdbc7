#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/gathering_update_engine.h"
#include "eps_server/optimizer/held_gradients.h"
#include "eps_server/optimizer/nonfinite_gradient.h"
#include "eps_server/optimizer/update_modes.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {
namespace {

class DeferredUpdateEngine final : public GatheringUpdateEngine {
 public:
  DeferredUpdateEngine(Options options, HeldGradients held_gradients)
      : GatheringUpdateEngine(std::move(options)), held_gradients_(std::move(held_gradients)) {
    Begin();
  }
  ~DeferredUpdateEngine() override { EndTasks(); }

 private:
  void PrepareStep() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    GatheringUpdateEngine::PrepareStep();
    nonfinite_.clear();
    chunks_to_sum_ = 0;
    for (const BlobId blob : BlobsToUpdate()) chunks_to_sum_ += num_chunks(blob);
  }

  void Gather(BlobId blob, int64_t chunk, ChunkGradient gradient) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // A std::function must be copyable, so the gradient goes behind a pointer.
    Push({"sum", blob, chunk},
         [this, step = step(), blob, chunk, shared = std::make_shared<ChunkGradient>(std::move(gradient))] {
           Sum(step, blob, chunk, *shared);
         });
  }

  // The gradient's memory is free after this.
  void Sum(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient) {
    const double squares = work().Sum(step, blob, chunk, gradient, held_gradients_.Chunk(blob, chunk));
    std::string nonfinite;
    if (gradient.nonfinite_vnode >= 0 || !std::isfinite(squares)) {
      nonfinite = DescribeNonFinite(model().blob(blob), chunk, gradient);
    }
    gradient = {};
    {
      MutexLock lock(mu_);
      if (!nonfinite.empty() && (nonfinite_.empty() || nonfinite < nonfinite_)) nonfinite_ = std::move(nonfinite);
      SetSquares(blob, chunk, squares);
      if (--chunks_to_sum_ > 0) return;
      DecideStep();
    }
    TellDecided();
  }

  void DecideStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Decide(nonfinite_);
    waits_for_readers_ = run().precision.wire_versions == 1 && !reads_ended();
    if (!waits_for_readers_) BeginUpdates();
  }
  void OverwriteVersion() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(waits_for_readers_, false)) BeginUpdates();
  }

  void BeginUpdates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool clips = run().optimizer.clip != ClipMode::kNone && !is_skipped();
    const double scale = (clips ? ClipScale(run().optimizer, Norm()) : 1) / step_loss_scale();
    for (const BlobId blob : BlobsToUpdate()) {  // pull order: the next forward waits for the first layer first
      SetScale(blob, scale);
      if (has_trust_ratios() && !is_skipped()) {
        to_measure_.push_back(blob);
      } else {
        MakeReady(blob);
      }
    }
    // Two, so that threads are busy when the first is measured; its updates come before the third is.
    MeasureNext();
    MeasureNext();
  }
  void OnMeasured() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { MeasureNext(); }
  void MeasureNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (to_measure_.empty()) return;
    const BlobId blob = to_measure_.front();
    to_measure_.pop_front();
    PushMeasures(blob);
  }

  ChunkGradient Gathered(BlobId blob, int64_t chunk, bool /*is_last*/) override {
    const auto* sum = reinterpret_cast<const std::byte*>(held_gradients_.Chunk(blob, chunk));
    return {.operands = {{Dtype::kF32, sum, {}, 0}}, .program = {{SumOp::Kind::kLoad, 0}}};
  }

  const HeldGradients held_gradients_;
  int64_t chunks_to_sum_ ABSL_GUARDED_BY(mu_) = 0;       // that are left
  std::string nonfinite_ ABSL_GUARDED_BY(mu_);           // what makes the step be skipped
  bool waits_for_readers_ ABSL_GUARDED_BY(mu_) = false;  // all is in, and it may not overwrite weights yet
  std::deque<BlobId> to_measure_ ABSL_GUARDED_BY(mu_);   // LAMB, in pull order
};

}  // namespace

std::unique_ptr<UpdateEngine> NewDeferredUpdateEngine(UpdateEngine::Options options, HeldGradients held_gradients) {
  return std::make_unique<DeferredUpdateEngine>(std::move(options), std::move(held_gradients));
}

}  // namespace eps::server
