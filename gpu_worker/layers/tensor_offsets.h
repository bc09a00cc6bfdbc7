#ifndef EPS_GPU_WORKER_LAYERS_TENSOR_OFFSETS_H_
#define EPS_GPU_WORKER_LAYERS_TENSOR_OFFSETS_H_

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps::worker {

// Where the layer's tensor of this role lies in its weight slot and gradient slot, in elements.
// The layer must have exactly one such tensor, or one of each expert, of which it is the first's: layers and ModelSpec are
// written for each other.
int64_t TensorOffset(const ModelSpec& model, LayerId layer, TensorRole role);
// The same of one that the layer may lack, or of a part of its adapter.
std::optional<int64_t> FindTensorOffset(const ModelSpec& model, LayerId layer, TensorRole role,
                                        LoraPart part = LoraPart::kNone);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_TENSOR_OFFSETS_H_
