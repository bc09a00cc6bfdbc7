#include "common/model/tensor_roles.h"

namespace eps {

const TensorSpec* TiedTable(const ModelSpec& model) {
  const TensorSpec* tokens = nullptr;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.role == TensorRole::kHeadTable) return nullptr;
      if (tensor.role == TensorRole::kTokenTable) tokens = &tensor;
    }
  }
  return tokens;
}

}  // namespace eps
