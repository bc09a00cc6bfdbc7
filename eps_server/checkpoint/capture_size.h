#ifndef EPS_SERVER_CHECKPOINT_CAPTURE_SIZE_H_
#define EPS_SERVER_CHECKPOINT_CAPTURE_SIZE_H_

#include <algorithm>
#include <cstdint>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/store/store.h"

namespace eps::server {

// What a checkpoint copies out of the store: masters in fp32 and moments, 12 bytes a parameter with AdamW, 8 where moments
// are bf16. Frozen blobs are written from where they lie.
inline int64_t CaptureBytes(const ModelSpec& model, const RunConfig& run) {
  return int64_t{sizeof(float)} * model.num_trainable_elems() + ComputeStoreSizes(model, run).moment_bytes;
}

// Unless the RunSpec says otherwise: all of a model of 89 million parameters with AdamW.
inline constexpr int64_t kDefaultCaptureBufferBytes = int64_t{1} << 30;

// How much of it waits in memory to be written, at most: checkpoint.buffer_bytes, but no more than there is to copy, and
// no less than the largest chunk.
inline int64_t CaptureBufferBytes(const ModelSpec& model, const RunConfig& run) {
  const int64_t all_bytes = CaptureBytes(model, run);
  const int64_t bytes_per_elem = all_bytes / model.num_trainable_elems();
  int64_t chunk_elems = 0;
  for (const BlobSpec& blob : model.blobs) {
    if (!blob.frozen) chunk_elems = std::max(chunk_elems, std::min(blob.num_elems, kChunkElems));
  }
  const int64_t wanted = run.checkpoint.buffer_bytes > 0 ? run.checkpoint.buffer_bytes : kDefaultCaptureBufferBytes;
  return std::clamp(wanted, bytes_per_elem * chunk_elems, all_bytes);
}

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CAPTURE_SIZE_H_
