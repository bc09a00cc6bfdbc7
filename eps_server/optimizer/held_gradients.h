#ifndef EPS_SERVER_OPTIMIZER_HELD_GRADIENTS_H_
#define EPS_SERVER_OPTIMIZER_HELD_GRADIENTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/anonymous_memory.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/hold_bytes.h"

namespace eps::server {

// The summed gradient of the whole model, fp32, where updates are deferred until the step is decided; else nothing.
//
// Threads: safe, as long as no two use the same chunk
class HeldGradients {
 public:
  // HoldBytes of memory. Errors: RESOURCE_EXHAUSTED
  static absl::StatusOr<HeldGradients> Map(const ModelSpec& model, const RunConfig& run) {
    HeldGradients held;
    const int64_t num_bytes = HoldBytes(model, run);
    if (num_bytes == 0) return held;
    EPS_ASSIGN_OR_RETURN(held.memory_,
                         AnonymousMemory::Map(num_bytes,
                                              "gradients held until the step's norm is known (optimizer.clip "
                                              "EXACT, or the loss scale of FP16)"));
    int64_t offset = 0;
    for (const BlobSpec& blob : model.blobs) {
      held.offsets_.push_back(std::exchange(offset, offset + (blob.frozen ? 0 : blob.num_elems)));
    }
    return held;
  }

  // Of a blob that is not frozen: the chunk's elements.
  float* Chunk(BlobId blob, int64_t chunk) const {
    return reinterpret_cast<float*>(memory_.base()) + offsets_[blob.value()] + chunk * kChunkElems;
  }

 private:
  HeldGradients() = default;
  AnonymousMemory memory_;
  std::vector<int64_t> offsets_;  // by blob, in elements
};

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_HELD_GRADIENTS_H_
