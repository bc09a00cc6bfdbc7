#ifndef EPS_SERVER_OPTIMIZER_GATHERING_UPDATE_ENGINE_H_
#define EPS_SERVER_OPTIMIZER_GATHERING_UPDATE_ENGINE_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/ids.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/update_engine_base.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {

// What the modes share that look at all of a gradient before they update with it: it is gathered, LAMB measures what its
// trust ratios are made of, and a blob whose scalars are known is updated, chunk by chunk.
class GatheringUpdateEngine : public UpdateEngineBase {
 protected:
  using UpdateEngineBase::UpdateEngineBase;

  void PrepareStep() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginReleased(BlobId blob) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- what a mode does ----
  // The gradient of a chunk, as it was gathered; `is_last`: nobody needs it after this.
  virtual ChunkGradient Gathered(BlobId blob, int64_t chunk, bool is_last) = 0;
  // All of a blob is measured, which is ready.
  virtual void OnMeasured() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}

  // ---- what it does that with ----
  // The blob's scalars are known: it is updated, unless it is held.
  void MakeReady(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // LAMB: has every chunk of a blob measured whose scale is known.
  void PushMeasures(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A chunk is, by range. With the blob's last one the blob is ready.
  void NoteMeasured(BlobId blob, int64_t chunk, std::vector<StepSquares> squares) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

 private:
  struct Progress {
    std::vector<std::vector<StepSquares>> step_squares;  // LAMB: by chunk and range
    int64_t measured = 0;                                // chunks whose step_squares are there
    bool ready = false;
  };
  Progress& ProgressOf(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return progress_[static_cast<size_t>(blob.value())];
  }
  void PushUpdates(BlobId blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tasks.
  void Measure(StepId step, BlobId blob, int64_t chunk, const UpdateScalars& scalars);
  void Update(StepId step, BlobId blob, int64_t chunk, const UpdateScalars& scalars);

  std::vector<Progress> progress_ ABSL_GUARDED_BY(mu_);  // by blob
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_GATHERING_UPDATE_ENGINE_H_
