#ifndef EPS_SERVER_OPTIMIZER_HOLD_BYTES_H_
#define EPS_SERVER_OPTIMIZER_HOLD_BYTES_H_

#include <cstdint>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"

namespace eps::server {

// Bytes beside the store that holding gradients costs (update_engine.h): 4 per element that is trained where updates
// are deferred, with EXACT clipping or FP16, else 0.
inline int64_t HoldBytes(const ModelSpec& model, const RunConfig& run) {
  return run.defers_updates() ? model.num_trainable_elems() * int64_t{sizeof(float)} : 0;
}

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_HOLD_BYTES_H_
