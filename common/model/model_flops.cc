#include "common/model/model_flops.h"

#include <algorithm>
#include <cstddef>

#include "common/model/model_config.h"

namespace eps {
namespace {

// Whether `layer` multiplies its rows by it. What is left looks up rows of it, scales by it or adds it.
bool IsMultiplied(TensorRole role, LayerKind layer) {
  switch (role) {
    case TensorRole::kQkvWeight:
    case TensorRole::kQueryWeight:
    case TensorRole::kKeyWeight:
    case TensorRole::kValueWeight:
    case TensorRole::kAttentionOutWeight:
    case TensorRole::kRouterWeight:
    case TensorRole::kGateWeight:
    case TensorRole::kUpWeight:
    case TensorRole::kDownWeight:
    case TensorRole::kHeadTable:
    case TensorRole::kHeadDenseWeight:
      return true;
    case TensorRole::kTokenTable:
      return layer == LayerKind::kHead;
    default:
      return false;
  }
}

// How many of the tokens one has on average.
double ShareOfExpert(const ExpertsConfig& experts) {
  return static_cast<double>(experts.per_token) / static_cast<double>(experts.num);
}

// Of one token, forward: its query with every key, and the weights with every value.
double AttentionFlops(const ModelConfig& config) {
  const int64_t keys = config.sliding_window > 0 ? std::min(config.sliding_window, config.context) : config.context;
  return 2.0 * 2.0 * static_cast<double>(keys) * static_cast<double>(config.num_heads * config.head_dim());
}

}  // namespace

ModelFlops::ModelFlops(const ModelSpec& model, bool has_reference) {
  const LayerId lowest = model.lowest_trainable_layer();
  for (const LayerSpec& layer : model.layers) {
    const bool goes_back = layer.id >= lowest;
    double flops = 0;
    for (const BlobUse& use : layer.blobs) {
      const BlobSpec& blob = model.blob(use.blob);
      const double passes = 1 + (goes_back ? 1 : 0) + (blob.frozen ? 0 : 1);
      for (const TensorSpec& tensor : blob.tensors) {
        const double share = tensor.is_of_expert() ? ShareOfExpert(model.config.experts) : 1;
        if (!IsMultiplied(tensor.role, layer.kind)) continue;
        const double forward = 2 * share * static_cast<double>(tensor.num_elems());
        flops += passes * forward;
        if (has_reference && tensor.lora == LoraPart::kNone) reference_per_token_ += forward;
      }
    }
    if (layer.kind == LayerKind::kBlock) {
      flops += (goes_back ? 3 : 1) * AttentionFlops(model.config);
      if (has_reference) reference_per_token_ += AttentionFlops(model.config);
    }
    const bool is_of_samples = layer.kind == LayerKind::kHead && model.config.is_classifier();
    layers_.push_back(is_of_samples ? LayerFlops{.per_sample = flops} : LayerFlops{.per_token = flops});
  }
}

double ModelFlops::Of(const Step& step) const {
  const auto tokens = static_cast<double>(step.tokens), samples = static_cast<double>(step.samples);
  double flops = reference_per_token_ * tokens;
  for (const LayerFlops& layer : layers_) flops += layer.per_token * tokens + layer.per_sample * samples;
  for (const LayerId id : step.dropped) flops -= layers_[static_cast<size_t>(id.value())].per_token * tokens;
  return flops;
}

}  // namespace eps
