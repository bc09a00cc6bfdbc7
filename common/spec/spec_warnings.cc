#include "common/spec/spec_warnings.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/model/lora.h"
#include "common/model/model_spec.h"

namespace eps {
namespace {

bool EndsWithFinal(ScheduleDecay decay) {
  return decay == ScheduleDecay::kLinear || decay == ScheduleDecay::kCosine || decay == ScheduleDecay::kOneMinusSqrt;
}

// Products whose adapter has as many parameters as they have, or more.
int64_t NumAdaptersAsLargeAsTheirProducts(const ModelConfig& config) {
  if (!config.lora.is_on()) return 0;
  const absl::StatusOr<ModelSpec> model = BuildModel(config);
  if (!model.ok()) return 0;
  std::map<std::string, ProductShape, std::less<>> shapes;  // by module
  for (const BlobSpec& blob : model->blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora == LoraPart::kA) shapes[std::string(ModuleOf(tensor))].in = tensor.shape[1];
      if (tensor.lora == LoraPart::kB) shapes[std::string(ModuleOf(tensor))].out = tensor.shape[0];
    }
  }
  return std::count_if(shapes.begin(), shapes.end(), [&](const auto& of_module) {
    const ProductShape& shape = of_module.second;
    return config.lora.rank * (shape.in + shape.out) >= shape.in * shape.out;
  });
}

}  // namespace

std::vector<SpecWarning> FindSpecWarnings(const RunConfig& run) {
  const OptimizerConfig& optimizer = run.optimizer;
  std::vector<SpecWarning> warnings;
  if (optimizer.warmup_steps >= run.steps) {
    warnings.push_back({"optimizer.schedule.warmup_steps",
                        absl::StrCat(optimizer.warmup_steps, ": all of the run's ", run.steps, " steps are warm-up")});
  }
  if (EndsWithFinal(optimizer.decay) && optimizer.final_learning_rate > optimizer.peak_learning_rate) {
    warnings.push_back({"optimizer.schedule.final",
                        absl::StrCat(optimizer.final_learning_rate, ": above the peak, ", optimizer.peak_learning_rate,
                                     ": the rate rises where it should decay")});
  }
  if (run.evaluation.every_steps > run.steps) {
    warnings.push_back({"evaluation.every_steps", absl::StrCat(run.evaluation.every_steps, ": of the run's ", run.steps,
                                                               " steps only the last is evaluated")});
  }
  if (const int64_t large = NumAdaptersAsLargeAsTheirProducts(run.model); large > 0) {
    warnings.push_back({"model.lora.rank",
                        absl::StrCat(run.model.lora.rank, ": ", large, large == 1 ? " adapter has" : " adapters have",
                                     " as many parameters as the product beside, or more")});
  }
  const ModelConfig& model = run.model;
  const double all = std::min({model.embedding_dropout, model.attention_dropout, model.residual_dropout});
  const std::pair<const char*, double> dropouts[] = {{"model.dropout", all},
                                                     {"model.embedding_dropout", model.embedding_dropout},
                                                     {"model.attention_dropout", model.attention_dropout},
                                                     {"model.residual_dropout", model.residual_dropout}};
  for (const auto& [field, chance] : dropouts) {
    if (!run.preferences.has_reference() || chance == 0) continue;
    warnings.push_back({field, absl::StrCat(chance, ": DPO compares with a model that drops nothing; 0 is usual")});
    break;
  }
  return warnings;
}

}  // namespace eps
