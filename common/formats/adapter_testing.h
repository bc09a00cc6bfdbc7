#ifndef EPS_COMMON_FORMATS_ADAPTER_TESTING_H_
#define EPS_COMMON_FORMATS_ADAPTER_TESTING_H_

#include <string>
#include <vector>

#include "common/model/model_config.h"

namespace eps {

// Small models with adapters of rank 2 beside what `targets` name, or beside all.
inline ModelConfig ConfigWithAdapters(ModelFamily family, const std::vector<std::string>& targets = {}) {
  ModelConfig config = {.family = family, .num_layers = 3, .d_model = 12, .num_heads = 3, .context = 8, .vocab = 17};
  config.lora = {.rank = 2, .alpha = 4, .targets = targets};
  if (family == ModelFamily::kGpt2) return config;
  config.max_positions = 8;
  config.d_ff = 20;
  if (family == ModelFamily::kBert) {
    config.num_types = 2;
    return config;
  }
  config.num_kv_heads = 1;
  config.d_head = 6;
  config.tied_head = false;
  return config;
}

inline ModelConfig ClassifierWithAdapters(const std::vector<std::string>& targets = {}) {
  ModelConfig config = ConfigWithAdapters(ModelFamily::kBert, targets);
  config.num_classes = 3;
  return config;
}

inline ModelConfig WithoutAdapters(ModelConfig config) {
  config.lora = {};
  return config;
}

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTER_TESTING_H_
