#include "common/model/model_builder.h"

#include <cmath>

#include "common/base/status_macros.h"

namespace eps {

double ResidualInitStddev(const ModelConfig& config) {
  return kInitStddev / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

BlobId ModelBuilder::AddBlob(BlobSpec blob) {
  blob.id = BlobId(static_cast<int32_t>(model_.blobs.size()));
  model_.blobs.push_back(std::move(blob));
  return model_.blobs.back().id;
}

void ModelBuilder::AddLayer(LayerKind kind, std::string name, const std::vector<BlobId>& blobs) {
  LayerSpec layer;
  layer.id = LayerId(static_cast<int32_t>(model_.layers.size()));
  layer.kind = kind;
  layer.name = std::move(name);
  for (const BlobId id : blobs) {
    BlobSpec& blob = model_.blobs[id.value()];
    layer.blobs.push_back({id, static_cast<int>(blob.uses.size()), layer.num_elems});
    blob.uses.push_back(layer.id);
    layer.num_elems += blob.num_elems;  // already a multiple of kTensorAlignElems
    EPS_CHECK(layer.blobs.size() == 1 || !model_.blob((layer.blobs.end() - 2)->blob).is_quantized());  // which is last
    if (blob.frozen) continue;
    EPS_CHECK(layer.trainable_elems + blob.num_elems == layer.num_elems);  // frozen ones are last
    layer.trainable_elems = layer.num_elems;
  }
  model_.layers.push_back(std::move(layer));
}

}  // namespace eps
