#include "gpu_worker/layers/tensor_offsets.h"

#include "common/base/status_macros.h"

namespace eps::worker {

std::optional<int64_t> FindTensorOffset(const ModelSpec& model, LayerId layer, TensorRole role, LoraPart part) {
  std::optional<int64_t> offset;
  for (const BlobUse& use : model.layer(layer).blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      if (tensor.role != role || tensor.lora != part || tensor.expert > 0) continue;
      EPS_CHECK(!offset.has_value());
      offset = use.offset_elems + tensor.offset_elems;
    }
  }
  return offset;
}

int64_t TensorOffset(const ModelSpec& model, LayerId layer, TensorRole role) {
  const std::optional<int64_t> offset = FindTensorOffset(model, layer, role);
  EPS_CHECK(offset.has_value());
  return *offset;
}

}  // namespace eps::worker
