#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/gathering_update_engine.h"
#include "eps_server/optimizer/update_modes.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {
namespace {

class BlobUpdateEngine final : public GatheringUpdateEngine {
 public:
  explicit BlobUpdateEngine(Options options) : GatheringUpdateEngine(std::move(options)) { Begin(); }
  ~BlobUpdateEngine() override { EndTasks(); }

 private:
  struct Kept {
    std::vector<ChunkGradient> gradients;  // by chunk
    int64_t gathered = 0;                  // chunks whose norm is known, PER_BLOB
  };

  void PrepareStep() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    GatheringUpdateEngine::PrepareStep();
    kept_.assign(model().blobs.size(), {});
    for (const BlobId blob : BlobsToUpdate()) KeptOf(blob).gradients.resize(static_cast<size_t>(num_chunks(blob)));
  }

  void Gather(BlobId blob, int64_t chunk, ChunkGradient gradient) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // A std::function must be copyable, so the gradient goes behind a pointer.
    Push({"measure", blob, chunk}, [this, step = step(), blob, chunk, scalars = scalars(blob),
                                    shared = std::make_shared<ChunkGradient>(std::move(gradient))] {
      if (run().optimizer.clip == ClipMode::kPerBlob) {
        MeasureGradient(step, blob, chunk, *shared);
      } else {
        MeasureGradientAndStep(step, blob, chunk, *shared, *scalars);
      }
    });
  }

  // PER_BLOB: the pass that finds the blob's norm.
  void MeasureGradient(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient) {
    const double squares = work().Sum(step, blob, chunk, gradient, nullptr);
    if (gradient.nonfinite_vnode >= 0 || !std::isfinite(squares)) return FailNonFinite(step, blob, chunk, gradient);
    MutexLock lock(mu_);
    Keep(blob, chunk, std::move(gradient), squares);
    if (++KeptOf(blob).gathered < num_chunks(blob)) return;
    SetScale(blob, ClipScale(run().optimizer, std::sqrt(Squares(blob))));
    if (has_trust_ratios()) {
      PushMeasures(blob);
    } else {
      MakeReady(blob);
    }
  }

  // LAMB, whose scale is known from the start: the gradient's norm, and that of the step.
  void MeasureGradientAndStep(StepId step, BlobId blob, int64_t chunk, ChunkGradient& gradient,
                              const UpdateScalars& scalars) {
    if (gradient.nonfinite_vnode >= 0) return FailNonFinite(step, blob, chunk, gradient);
    work().ShowSum(step, blob, chunk, gradient);
    double squares = 0;
    absl::StatusOr<std::vector<StepSquares>> step_squares =
        work().Measure(step, blob, chunk, gradient, scalars, &squares);
    if (!step_squares.ok()) return Fail(step_squares.status());
    if (!std::isfinite(squares)) return FailNonFinite(step, blob, chunk, gradient);
    MutexLock lock(mu_);
    Keep(blob, chunk, std::move(gradient), squares);
    NoteMeasured(blob, chunk, *std::move(step_squares));
  }

  void Keep(BlobId blob, int64_t chunk, ChunkGradient gradient, double squares) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SetSquares(blob, chunk, squares);
    KeptOf(blob).gradients[static_cast<size_t>(chunk)] = std::move(gradient);
  }
  ChunkGradient Gathered(BlobId blob, int64_t chunk, bool is_last) override {
    MutexLock lock(mu_);
    ChunkGradient& kept = KeptOf(blob).gradients[static_cast<size_t>(chunk)];
    return is_last ? std::exchange(kept, {}) : kept;
  }

  Kept& KeptOf(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return kept_[static_cast<size_t>(blob.value())]; }
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);  // by blob
};

}  // namespace

std::unique_ptr<UpdateEngine> NewBlobUpdateEngine(UpdateEngine::Options options) {
  return std::make_unique<BlobUpdateEngine>(std::move(options));
}

}  // namespace eps::server
