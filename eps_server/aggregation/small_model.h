#ifndef EPS_SERVER_AGGREGATION_SMALL_MODEL_H_
#define EPS_SERVER_AGGREGATION_SMALL_MODEL_H_

#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps::server {

// What this folder's tests aggregate: wte (one chunk, used by embedding and head), wpe, two blocks of four chunks, ln_f.
inline ModelSpec SmallModel() {
  return *BuildModel({.num_layers = 2, .d_model = 256, .num_heads = 2, .context = 16, .vocab = 100});
}
inline constexpr BlobId kWte(0), kWpe(1), kBlock0(2), kBlock1(3), kLnF(4);

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_SMALL_MODEL_H_
