#ifndef EPS_SERVER_OPTIMIZER_CHUNK_WORK_H_
#define EPS_SERVER_OPTIMIZER_CHUNK_WORK_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/optimizer/tensor_groups.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/paged_memory.h"
#include "eps_server/store/store.h"

namespace eps::server {

// What a pass over so many elements of a gradient has to read.
int64_t GradientBytes(const ChunkGradient& gradient, int64_t num_elems);
int64_t NumElems(absl::Span<const GroupRange> ranges);

// The passes over a chunk that the update engine's tasks are made of, in any of its modes: each runs the kernels, and
// counts what it moved. Which of them runs when is the engine's. Those that want what lies of the model on a disk
// (Store::Chunk) fail where that does.
//
// Threads: safe, as long as no two work on the same chunk
class ChunkWork {
 public:
  // All outlive it. groups: by blob. witness: null: none.
  ChunkWork(const ModelSpec& model, Store& store, const std::vector<TensorGroups>& groups, ChunkWitness* witness)
      : model_(model), store_(store), groups_(groups), witness_(witness) {}

  // Of the gradient's sum the sum of squares, unscaled. `sum`: takes the sum, if it is not null.
  double Sum(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient, float* sum);
  // The same of a chunk whose sum the witness has seen.
  double SumAgain(BlobId blob, int64_t chunk, const ChunkGradient& gradient);
  // LAMB's pass before the update: of each range what its trust ratio is made of. squares: as UpdateChunk's.
  absl::StatusOr<std::vector<StepSquares>> Measure(StepId step, BlobId blob, int64_t chunk,
                                                   const ChunkGradient& gradient, const UpdateScalars& scalars,
                                                   double* squares);

  // From the step's version to the next one. squares: as UpdateChunk's. The witness is not told: the engine may find
  // that the gradient was not finite, or update a chunk in two parts.
  absl::Status Update(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient,
                      const UpdateScalars& scalars, double* squares);
  absl::Status UpdateRanges(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient,
                            absl::Span<const GroupRange> ranges, const UpdateScalars& scalars,
                            double* squares = nullptr);
  // The next version of the blob is the step's.
  void CarryOver(StepId step, BlobId blob);

  // A sum that an update makes in passing is made once more, for the witness alone.
  void ShowSum(StepId step, BlobId blob, int64_t chunk, const ChunkGradient& gradient);
  void ShowUpdated(StepId step, BlobId blob, int64_t chunk);

  // A pass over the chunk is queued: with several, blobs that are pulled first come first.
  void Prefetch(BlobId blob, int64_t chunk) { store_.Prefetch(blob, chunk); }

  // What an update of so many elements, whole units of moments, has to read and write of the model: the wire form, unless
  // the master lies beside it, and its successor; the master or its rest, and the moments, all in place.
  int64_t StateBytes(int64_t num_elems) const;
  const std::vector<GroupRange>& RangesOf(BlobId blob, int64_t chunk) const {
    return groups_[static_cast<size_t>(blob.value())].ranges[static_cast<size_t>(chunk)];
  }

  int64_t updated_elems() const { return updated_elems_; }
  int64_t moved_bytes() const { return moved_bytes_; }

 private:
  // Errors: Store::Chunk's, with step, blob and chunk
  absl::StatusOr<ChunkState> Open(StepId step, BlobId blob, int64_t chunk, PagedMemory::Access access);

  const ModelSpec& model_;
  Store& store_;
  const std::vector<TensorGroups>& groups_;
  ChunkWitness* const witness_;
  std::atomic<int64_t> updated_elems_ = 0;
  std::atomic<int64_t> moved_bytes_ = 0;  // read and written
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_CHUNK_WORK_H_
