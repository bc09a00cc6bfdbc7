#include "common/model/freeze.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/model/model_builder.h"
#include "common/model/name_patterns.h"
#include "common/model/tensor_roles.h"
#include "common/numeric/quantized.h"

namespace eps {
namespace {

// What becomes of a tensor: each kind of a blob's is a blob of its own. In the order of a layer's slot.
enum class Kind { kTrained, kFrozen, kQuantized };
constexpr Kind kKinds[] = {Kind::kTrained, Kind::kFrozen, Kind::kQuantized};

absl::string_view EndingOf(Kind kind) {
  return kind == Kind::kTrained ? "" : kind == Kind::kFrozen ? ".frozen" : ".quantized";
}

using KindByName = std::map<std::string, Kind>;

// Blocks' matrices that are no adapter's, nor a router's.
void MarkQuantized(const ModelSpec& model, KindByName& kinds) {
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kBlock) continue;
    for (const BlobUse& use : layer.blobs) {
      for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
        Kind& kind = kinds.at(tensor.name);
        const bool is_matrix =
            tensor.shape.size() >= 2 && tensor.lora == LoraPart::kNone && tensor.role != TensorRole::kRouterWeight;
        if (kind == Kind::kFrozen && is_matrix) kind = Kind::kQuantized;
      }
    }
  }
}

// The tensors of `blob` that are of that kind, one behind the other. format: of quantized ones.
BlobSpec PartOfBlob(const BlobSpec& blob, const KindByName& kinds, Kind kind, std::optional<QuantizedFormat> format) {
  BlobSpec part;
  part.frozen = kind != Kind::kTrained;
  if (kind == Kind::kQuantized) part.quantized = format;
  for (const TensorSpec& tensor : blob.tensors) {
    if (kinds.at(tensor.name) == kind) part.tensors.push_back(tensor);
  }
  const bool is_whole = part.tensors.size() == blob.tensors.size();
  part.name = is_whole ? blob.name : absl::StrCat(blob.name, EndingOf(kind));
  if (part.frozen) {
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
  const std::optional<QuantizedFormat> format = model.config.frozen_format;
  const auto nothing_to_quantize = [] {
    return absl::InvalidArgumentError(
        "precision.frozen: no matrix of a block is frozen, by model.lora or by model.freeze (whose patterns with ! "
        "take back); "
        "leave it out, or freeze one");
  };
  if (patterns.empty() && !has_adapters) {
    if (format.has_value()) return nothing_to_quantize();
    return model;
  }
  // A classifier's new head is what the task is about: PEFT trains it, too.
  const auto is_frozen = [&](const TensorSpec& tensor) {
    const bool is_of_classes = model.config.is_classifier() && IsHeadOutput(tensor.role);
    return has_adapters && tensor.lora == LoraPart::kNone && !is_of_classes;
  };
  EPS_ASSIGN_OR_RETURN(const auto frozen, ChooseTensors(model, patterns, "model.freeze", is_frozen));
  if (std::all_of(frozen.begin(), frozen.end(), [](const auto& tensor) { return tensor.second; })) {
    return absl::InvalidArgumentError("model.freeze: every tensor is frozen: nothing is left to train");
  }
  KindByName kinds;
  for (const auto& [name, is_frozen_now] : frozen) kinds.emplace(name, is_frozen_now ? Kind::kFrozen : Kind::kTrained);
  if (format.has_value()) MarkQuantized(model, kinds);
  ModelBuilder builder(model.config);
  std::map<Kind, std::map<BlobId, BlobId>> became;  // by the blob that it was
  for (const BlobSpec& blob : model.blobs) {
    for (const Kind kind : kKinds) {
      BlobSpec part = PartOfBlob(blob, kinds, kind, format);
      if (!part.tensors.empty()) became[kind].emplace(blob.id, builder.AddBlob(std::move(part)));
    }
  }
  for (const LayerSpec& layer : model.layers) {
    std::vector<BlobId> blobs;
    for (const Kind kind : kKinds) {
      for (const BlobUse& use : layer.blobs) {
        const auto part = became[kind].find(use.blob);
        if (part != became[kind].end()) blobs.push_back(part->second);
      }
    }
    builder.AddLayer(layer.kind, layer.name, blobs);
  }
  ModelSpec built = builder.Build();
  if (format.has_value() && !built.has_quantized()) return nothing_to_quantize();
  return built;
}

}  // namespace eps
