#ifndef EPS_SERVER_CHECKPOINT_CAPTURE_SIZE_H_
#define EPS_SERVER_CHECKPOINT_CAPTURE_SIZE_H_

#include <algorithm>
#include <cstdint>

#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"

namespace eps::server {

// Of a chunk of so many elements: masters in fp32 and moments, then nothing as far as a multiple of 64 bytes. 12 bytes a
// parameter with AdamW, 8 where moments are bf16, 6 where they are fp8.
inline int64_t CapturedChunkBytes(int num_moments, MomentFormat moments, int64_t num_elems) {
  const int64_t num_bytes = int64_t{sizeof(float)} * num_elems + num_moments * MomentBytes(moments, num_elems);
  return (num_bytes + 63) / 64 * 64;
}

// What a checkpoint copies out of the store. Frozen blobs are written from where they lie.
inline int64_t CaptureBytes(const ModelSpec& model, const RunConfig& run) {
  int64_t num_bytes = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (int64_t chunk = 0; chunk < blob.num_chunks() && !blob.frozen; ++chunk) {
      num_bytes += CapturedChunkBytes(run.optimizer.num_moments(), run.precision.moments, blob.chunk_elems(chunk));
    }
  }
  return num_bytes;
}

// Unless the RunSpec says otherwise: all of a model of 89 million parameters with AdamW.
inline constexpr int64_t kDefaultCaptureBufferBytes = int64_t{1} << 30;

// How much of it waits in memory to be written, at most: checkpoint.buffer_bytes, but no more than there is to copy, and
// no less than the largest chunk.
inline int64_t CaptureBufferBytes(const ModelSpec& model, const RunConfig& run) {
  const int64_t all_bytes = CaptureBytes(model, run);
  int64_t chunk_elems = 0;
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.frozen) chunk_elems = std::max(chunk_elems, std::min(blob.num_elems, kChunkElems));
  }
  const int64_t wanted = run.checkpoint.buffer_bytes > 0 ? run.checkpoint.buffer_bytes : kDefaultCaptureBufferBytes;
  return std::clamp(wanted, CapturedChunkBytes(run.optimizer.num_moments(), run.precision.moments, chunk_elems),
                    all_bytes);
}

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CAPTURE_SIZE_H_
