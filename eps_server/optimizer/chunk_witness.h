#ifndef EPS_SERVER_OPTIMIZER_CHUNK_WITNESS_H_
#define EPS_SERVER_OPTIMIZER_CHUNK_WITNESS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace eps::server {

// Sees every chunk of a step once summed and once updated, so that two runs can be compared.
//
// Threads: called by the engine's, several at once, for different chunks; each call holds up that chunk's update.
class ChunkWitness {
 public:
  virtual ~ChunkWitness() = default;
  // The sum of a chunk's contributions, as they came: multiplied by the loss scale, not clipped.
  virtual void OnSummed(StepId step, BlobId blob, int64_t chunk, absl::Span<const float> sum) = 0;
  // The chunk has its master of the step's version, s + 1, and keeps it until this returns; of a skipped step too.
  virtual void OnUpdated(StepId step, BlobId blob, int64_t chunk) = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_CHUNK_WITNESS_H_
