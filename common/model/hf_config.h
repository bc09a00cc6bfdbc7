#ifndef EPS_COMMON_MODEL_HF_CONFIG_H_
#define EPS_COMMON_MODEL_HF_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace eps {

// The config.json of a Hugging Face folder <-> ModelConfig, for every family (families.h). init_seed is no part of it.
//
// A config that asks for a computation that is not ours (another activation, attention scaled by layer, another scaling
// of positions, ...) is refused, so that no folder is trained as something else than it is. Keys that change no
// computation are ignored. Absent keys mean what they mean to transformers.
//
// Errors: INVALID_ARGUMENT naming the key, the value found and what is allowed
absl::StatusOr<ModelConfig> ModelConfigFromJson(const std::string& json);

// What ModelConfigFromJson reads and transformers loads as the architecture that it names.
std::string ModelConfigToJson(const ModelConfig& config);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_HF_CONFIG_H_
