#include "common/checkpoint/untrained_run.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

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

int64_t QuantizedParameters(const ModelSpec& model) {
  int64_t sum = 0;
  for (const BlobSpec& blob : model.blobs) sum += blob.is_quantized() ? blob.num_parameters() : 0;
  return sum;
}

}  // namespace

absl::StatusOr<RunConfig> WithoutTraining(RunConfig run, const std::vector<FieldOverride>& form) {
  run.optimizer = {.rule = OptimizerRule::kSgd, .peak_learning_rate = 1};
  run.precision.moments = MomentFormat::kFp32;
  run.optimizer_offload = {};
  EPS_ASSIGN_OR_RETURN(const ModelSpec was, BuildModel(run.model));
  run.model.freeze = {"*", absl::StrCat("!", TensorToTrain(was))};
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run.model));
  // Else matrices that the run trained would be rounded.
  if (QuantizedParameters(model) != QuantizedParameters(was)) run.model.frozen_format = std::nullopt;
  return WithOverrides(run, form);
}

std::vector<FieldOverride> TakeForm(std::vector<FieldOverride>& overrides) {
  const auto first = std::stable_partition(overrides.begin(), overrides.end(),
                                           [](const FieldOverride& field) { return field.path != "precision.frozen"; });
  std::vector<FieldOverride> form(first, overrides.end());
  overrides.erase(first, overrides.end());
  return form;
}

}  // namespace eps
