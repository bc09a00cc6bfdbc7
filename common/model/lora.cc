#include "common/model/lora.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/model_builder.h"

namespace eps {
namespace {

// As PEFT has it: the whole name, or its last parts.
bool IsTarget(absl::string_view module, absl::string_view target) {
  return module == target || (absl::EndsWith(module, target) && module[module.size() - target.size() - 1] == '.');
}

// Which of `targets` are found to name something.
class Targets {
 public:
  explicit Targets(const std::vector<std::string>& targets) : targets_(targets) {}

  bool Choose(absl::string_view module) {
    bool chosen = targets_.empty();
    for (const std::string& target : targets_) {
      if (!IsTarget(module, target)) continue;
      chosen = true;
      found_.insert(target);
    }
    last_parts_.insert(std::string(module.substr(module.rfind('.') + 1)));
    return chosen;
  }
  absl::Status CheckAllFound() const {
    for (const std::string& target : targets_) {
      if (found_.contains(target)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("model.lora.targets: \"", target,
                       "\" names no product of the blocks that may have an adapter; names end with ",
                       absl::StrJoin(last_parts_, ", "), "; leave targets out for all of them"));
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<std::string>& targets_;
  std::set<std::string> found_, last_parts_;
};

BlobSpec WithAdapters(const ModelConfig& config, const BlobSpec& blob, Targets& targets) {
  BlobSpec adapted = blob;
  std::vector<TensorSpec> as, bs;
  for (const TensorSpec& weight : blob.tensors) {
    const absl::string_view module = ModuleOf(weight);
    const bool is_product =
        weight.shape.size() == 2 && !weight.is_of_expert() && weight.role != TensorRole::kRouterWeight;
    if (!is_product || !targets.Choose(module)) continue;
    const ProductShape shape = ProductShapeOf(config, weight.shape);
    TensorSpec a = {.name = absl::StrCat(module, ".lora_A.weight"),
                    .shape = {config.lora.rank, shape.in},
                    .init = InitRule::kNormal,
                    .init_stddev = 1 / std::sqrt(3.0 * static_cast<double>(shape.in)),
                    .role = weight.role,
                    .lora = LoraPart::kA};
    TensorSpec b = {.name = absl::StrCat(module, ".lora_B.weight"),
                    .shape = {shape.out, config.lora.rank},
                    .init = InitRule::kZeros,
                    .role = weight.role,
                    .lora = LoraPart::kB};
    as.push_back(std::move(a));
    bs.push_back(std::move(b));
  }
  for (std::vector<TensorSpec>* part : {&as, &bs}) {
    for (TensorSpec& tensor : *part) {
      tensor.offset_elems = adapted.num_elems;
      adapted.num_elems = RoundUp(adapted.num_elems + tensor.num_elems(), kTensorAlignElems);
      adapted.tensors.push_back(std::move(tensor));
    }
  }
  adapted.uses.clear();  // the builder's to fill
  return adapted;
}

// Every end of the name that begins with a part of it, the shortest first: "c_fc", "mlp.c_fc", ...
std::vector<std::string> EndsOf(const std::string& name) {
  std::vector<std::string> ends;
  for (size_t dot = name.rfind('.'); dot != std::string::npos;
       dot = dot == 0 ? std::string::npos : name.rfind('.', dot - 1)) {
    ends.push_back(name.substr(dot + 1));
  }
  ends.push_back(name);
  return ends;
}

}  // namespace

std::vector<std::string> TargetsThatName(const std::set<std::string>& modules, const std::set<std::string>& others) {
  std::set<std::string> ends_of_others, targets;
  for (const std::string& other : others) {
    for (std::string& end : EndsOf(other)) ends_of_others.insert(std::move(end));
  }
  for (const std::string& module : modules) {
    const std::vector<std::string> ends = EndsOf(module);
    const auto own = std::find_if(ends.begin(), ends.end() - 1,
                                  [&](const std::string& end) { return !ends_of_others.contains(end); });
    targets.insert(*own);
  }
  return {targets.begin(), targets.end()};
}

ProductShape ProductShapeOf(const ModelConfig& config, const std::vector<int64_t>& weight_shape) {
  const bool is_out_in = config.has_out_in_weights();
  return {.in = weight_shape[is_out_in ? 1 : 0], .out = weight_shape[is_out_in ? 0 : 1], .is_out_in = is_out_in};
}

absl::string_view ModuleOf(const TensorSpec& tensor) {
  absl::string_view name = absl::StripSuffix(tensor.name, ".weight");
  if (tensor.lora != LoraPart::kNone) name = name.substr(0, name.rfind('.'));
  return name;
}

absl::Status CheckLoraRanges(absl::string_view field, const LoraConfig& lora) {
  if (lora.rank < 1 || lora.rank > kMaxLoraRank) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".rank: ", lora.rank, ", must be between 1 and ", kMaxLoraRank));
  }
  // Kernels have the scale in fp32.
  if (!(static_cast<float>(lora.scale()) > 0) || !std::isfinite(static_cast<float>(lora.alpha))) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".alpha: ", lora.alpha, ", must be greater than 0, and finite in fp32"));
  }
  EPS_RETURN_IF_ERROR(CheckDropout(absl::StrCat(field, ".dropout"), lora.dropout));
  if (lora.targets.size() > kMaxLoraTargets) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".targets: ", lora.targets.size(), ", must be at most ", kMaxLoraTargets));
  }
  for (const std::string& target : lora.targets) {
    if (!target.empty() && target.size() <= kMaxLoraTargetBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".targets: one of ", target.size(), " bytes, must be of 1 to ", kMaxLoraTargetBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> AddAdapters(ModelSpec model) {
  const LoraConfig& lora = model.config.lora;
  if (lora == LoraConfig{}) return model;
  EPS_RETURN_IF_ERROR(CheckLoraRanges("model.lora", lora));
  std::set<BlobId> of_blocks;
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kBlock) continue;
    for (const BlobUse& use : layer.blobs) of_blocks.insert(use.blob);
  }
  Targets targets(lora.targets);
  ModelBuilder builder(model.config);
  for (const BlobSpec& blob : model.blobs) {
    BlobSpec own = blob;
    own.uses.clear();
    builder.AddBlob(of_blocks.contains(blob.id) ? WithAdapters(model.config, blob, targets) : std::move(own));
  }
  EPS_RETURN_IF_ERROR(targets.CheckAllFound());
  for (const LayerSpec& layer : model.layers) {
    std::vector<BlobId> blobs;
    for (const BlobUse& use : layer.blobs) blobs.push_back(use.blob);
    builder.AddLayer(layer.kind, layer.name, blobs);
  }
  return builder.Build();
}

}  // namespace eps
