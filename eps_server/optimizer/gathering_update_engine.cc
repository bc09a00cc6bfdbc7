#include "eps_server/optimizer/gathering_update_engine.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/tensor_groups.h"

namespace eps::server {

void GatheringUpdateEngine::PrepareStep() {
  progress_.assign(model().blobs.size(), {});
  if (!has_trust_ratios()) return;
  for (const BlobId blob : BlobsToUpdate()) ProgressOf(blob).step_squares.resize(static_cast<size_t>(num_chunks(blob)));
}

void GatheringUpdateEngine::BeginReleased(BlobId blob) {
  if (ProgressOf(blob).ready) PushUpdates(blob);
}

void GatheringUpdateEngine::MakeReady(BlobId blob) {
  ProgressOf(blob).ready = true;
  if (!IsHeld(blob)) return PushUpdates(blob);
  BeginWaitFor(blob);
}

void GatheringUpdateEngine::PushMeasures(BlobId blob) {
  for (int64_t chunk = 0; chunk < num_chunks(blob); ++chunk) {
    work().Prefetch(blob, chunk);
    Push({"measure", blob, chunk},
         [this, blob, chunk, step = step(), scalars = scalars(blob)] { Measure(step, blob, chunk, *scalars); });
  }
}

void GatheringUpdateEngine::Measure(StepId step, BlobId blob, int64_t chunk, const UpdateScalars& scalars) {
  absl::StatusOr<std::vector<StepSquares>> squares =
      work().Measure(step, blob, chunk, Gathered(blob, chunk, /*is_last=*/false), scalars, nullptr);
  if (!squares.ok()) return Fail(squares.status());
  MutexLock lock(mu_);
  NoteMeasured(blob, chunk, *std::move(squares));
}

// Norms are summed chunk by chunk, a chunk's ranges in order.
void GatheringUpdateEngine::NoteMeasured(BlobId blob, int64_t chunk, std::vector<StepSquares> squares) {
  Progress& progress = ProgressOf(blob);
  progress.step_squares[static_cast<size_t>(chunk)] = std::move(squares);
  if (++progress.measured < num_chunks(blob)) return;
  const TensorGroups& of_blob = groups(blob);
  std::vector<StepSquares> of_group(of_blob.groups.size());
  for (size_t c = 0; c < of_blob.ranges.size(); ++c) {
    for (size_t r = 0; r < of_blob.ranges[c].size(); ++r) {
      StepSquares& sum = of_group[static_cast<size_t>(of_blob.ranges[c][r].group)];
      sum.weights += progress.step_squares[c][r].weights;
      sum.step += progress.step_squares[c][r].step;
    }
  }
  std::vector<TensorGroup> with_ratios = of_blob.groups;
  for (size_t g = 0; g < with_ratios.size(); ++g) {
    if (!of_blob.has_trust_ratio[g]) continue;
    with_ratios[g].learning_rate_scale *= TrustRatio(of_group[g], run().optimizer.max_trust_ratio);
  }
  SetScalars(blob, with_ratios);
  MakeReady(blob);
  OnMeasured();
}

void GatheringUpdateEngine::PushUpdates(BlobId blob) {
  NoteUpdate();
  if (is_skipped()) return PushCarryOver(blob);
  for (int64_t chunk = 0; chunk < num_chunks(blob); ++chunk) {
    work().Prefetch(blob, chunk);
    Push({"update", blob, chunk},
         [this, blob, chunk, step = step(), scalars = scalars(blob)] { Update(step, blob, chunk, *scalars); });
  }
}

// Contributions are given back without the lock, and before the blob is told.
void GatheringUpdateEngine::Update(StepId step, BlobId blob, int64_t chunk, const UpdateScalars& scalars) {
  const absl::Status status =
      work().Update(step, blob, chunk, Gathered(blob, chunk, /*is_last=*/true), scalars, nullptr);
  if (!status.ok()) return Fail(status);
  work().ShowUpdated(step, blob, chunk);
  FinishChunk(blob, chunk);
}

}  // namespace eps::server
