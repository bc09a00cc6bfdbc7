#include "common/model/freeze.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/model/model_builder.h"
#include "common/model/name_patterns.h"
#include "common/model/tensor_roles.h"

namespace eps {
namespace {

using FrozenByName = std::map<std::string, bool>;

// The tensors of `blob` that are frozen, or the others, one behind the other.
BlobSpec PartOfBlob(const BlobSpec& blob, const FrozenByName& frozen, bool of_frozen) {
  BlobSpec part;
  part.frozen = of_frozen;
  for (const TensorSpec& tensor : blob.tensors) {
    if (frozen.at(tensor.name) == of_frozen) part.tensors.push_back(tensor);
  }
  const bool is_whole = part.tensors.size() == blob.tensors.size();
  part.name = is_whole || !of_frozen ? blob.name : absl::StrCat(blob.name, ".frozen");
  if (of_frozen) {
    std::stable_partition(part.tensors.begin(), part.tensors.end(),
                          [](const TensorSpec& tensor) { return tensor.shape.size() < 2; });
  }
  for (TensorSpec& tensor : part.tensors) {
    tensor.offset_elems = part.num_elems;
    part.num_elems = RoundUp(part.num_elems + tensor.num_elems(), kTensorAlignElems);
  }
  return part;
}

}  // namespace

absl::StatusOr<ModelSpec> Freeze(ModelSpec model, const std::vector<std::string>& patterns) {
  const bool has_adapters = model.config.lora.is_on();
  if (patterns.empty() && !has_adapters) return model;
  // A classifier's new head is what the task is about: PEFT trains it, too.
  const auto is_frozen = [&](const TensorSpec& tensor) {
    const bool is_of_classes = model.config.is_classifier() && IsHeadOutput(tensor.role);
    return has_adapters && tensor.lora == LoraPart::kNone && !is_of_classes;
  };
  EPS_ASSIGN_OR_RETURN(const FrozenByName frozen, ChooseTensors(model, patterns, "model.freeze", is_frozen));
  if (std::all_of(frozen.begin(), frozen.end(), [](const auto& tensor) { return tensor.second; })) {
    return absl::InvalidArgumentError("model.freeze: every tensor is frozen: nothing is left to train");
  }
  ModelBuilder builder(model.config);
  std::vector<std::vector<BlobId>> trained(model.blobs.size()), kept(model.blobs.size());  // by blob: what it became
  for (const BlobSpec& blob : model.blobs) {
    for (const bool of_frozen : {false, true}) {
      BlobSpec part = PartOfBlob(blob, frozen, of_frozen);
      if (part.tensors.empty()) continue;
      (of_frozen ? kept : trained)[static_cast<size_t>(blob.id.value())].push_back(builder.AddBlob(std::move(part)));
    }
  }
  for (const LayerSpec& layer : model.layers) {
    std::vector<BlobId> blobs;
    for (const auto& of_kind : {trained, kept}) {
      for (const BlobUse& use : layer.blobs) {
        const std::vector<BlobId>& became = of_kind[static_cast<size_t>(use.blob.value())];
        blobs.insert(blobs.end(), became.begin(), became.end());
      }
    }
    builder.AddLayer(layer.kind, layer.name, blobs);
  }
  return builder.Build();
}

}  // namespace eps
