#include "common/checkpoint/untrained_run.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"

namespace eps {
namespace {

// The name of the smallest tensor that the head has for itself: the nearer to the loss it is, the less of a way back has
// to be planned for.
std::string TensorToTrain(const ModelSpec& model) {
  const TensorSpec* smallest = nullptr;
  for (const BlobUse& use : model.layers.back().blobs) {
    const BlobSpec& blob = model.blob(use.blob);
    if (blob.uses.size() > 1) continue;
    for (const TensorSpec& tensor : blob.tensors) {
      if (smallest == nullptr || tensor.num_elems() < smallest->num_elems()) smallest = &tensor;
    }
  }
  EPS_CHECK(smallest != nullptr);  // its norm, if nothing else
  return smallest->name;
}

// The blocks' matrices that are not quantized, and would be if they were frozen.
std::vector<std::string> MatricesThatTrain(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : model.layers) {
    if (layer.kind != LayerKind::kBlock) continue;
    for (const BlobUse& use : layer.blobs) {
      const BlobSpec& blob = model.blob(use.blob);
      if (blob.frozen) continue;
      for (const TensorSpec& tensor : blob.tensors) {
        if (tensor.shape.size() >= 2 && tensor.lora == LoraPart::kNone) names.push_back(tensor.name);
      }
    }
  }
  return names;
}

}  // namespace

absl::StatusOr<RunConfig> WithoutTraining(RunConfig run, std::vector<FieldOverride> overrides) {
  run.optimizer = {.rule = OptimizerRule::kSgd, .peak_learning_rate = 1};
  run.precision.moments = MomentFormat::kFp32;
  run.optimizer_offload = {};
  run.layer_drop = {};
  const auto is_wire = [](const FieldOverride& field) { return field.path == "precision.wire"; };
  if (const auto wire = std::find_if(overrides.rbegin(), overrides.rend(), is_wire); wire != overrides.rend()) {
    run.precision.gradients = Dtype::kF32;
    run.precision.loss_scale.reset();
    if (wire->value != "FP32") run.precision.tf32 = false;
  }
  const std::vector<FieldOverride> frozen_format = TakeFrozenFormat(overrides);
  EPS_ASSIGN_OR_RETURN(run, WithOverrides(run, overrides));
  EPS_ASSIGN_OR_RETURN(const ModelSpec was, BuildModel(run.model));
  run.model.freeze = {"*", absl::StrCat("!", TensorToTrain(was))};
  const std::vector<std::string> trained = MatricesThatTrain(was);
  if (run.model.frozen_format.has_value() && frozen_format.empty() && !trained.empty()) {
    if (run.precision.wire == Dtype::kF16) {
      for (const std::string& name : trained) run.model.freeze.push_back(absl::StrCat("!", name));
    } else {
      run.model.frozen_format.reset();
    }
  }
  return WithOverrides(run, frozen_format);
}

std::vector<FieldOverride> TakeFrozenFormat(std::vector<FieldOverride>& overrides) {
  const auto first = std::stable_partition(overrides.begin(), overrides.end(),
                                           [](const FieldOverride& field) { return field.path != "precision.frozen"; });
  std::vector<FieldOverride> taken(first, overrides.end());
  overrides.erase(first, overrides.end());
  return taken;
}

}  // namespace eps
