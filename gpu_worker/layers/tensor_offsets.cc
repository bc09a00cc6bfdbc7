#include "gpu_worker/layers/tensor_offsets.h"

#include "absl/strings/match.h"
#include "common/base/status_macros.h"

namespace eps::worker {

int64_t TensorOffset(const ModelSpec& model, LayerId layer, absl::string_view suffix) {
  int64_t offset = -1;
  for (const BlobUse& use : model.layer(layer).blobs) {
    for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
      if (!absl::EndsWith(tensor.name, suffix)) continue;
      EPS_CHECK(offset < 0);
      offset = use.offset_elems + tensor.offset_elems;
    }
  }
  EPS_CHECK(offset >= 0);
  return offset;
}

}  // namespace eps::worker
