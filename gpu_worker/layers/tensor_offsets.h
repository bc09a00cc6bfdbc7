#ifndef EPS_GPU_WORKER_LAYERS_TENSOR_OFFSETS_H_
#define EPS_GPU_WORKER_LAYERS_TENSOR_OFFSETS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps::worker {

// Where the tensor whose name ends in `suffix` lies in the layer's weight slot and gradient slot, in elements.
// The layer must have exactly one such tensor: layers and ModelSpec are written for each other.
int64_t TensorOffset(const ModelSpec& model, LayerId layer, absl::string_view suffix);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_TENSOR_OFFSETS_H_
