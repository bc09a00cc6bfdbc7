#ifndef EPS_COMMON_MODEL_HF_CONFIG_H_
#define EPS_COMMON_MODEL_HF_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace eps {

// The config.json of a Hugging Face GPT-2 folder <-> Gpt2Config. init_seed is not part of it: 0.
//
// A config that asks for a computation that is not ours (another activation, untied embeddings,
// attention scaled by layer, ...) is refused, so that no folder is trained as something else than
// it is. Keys that change no computation are ignored. Absent: layer_norm_epsilon 1e-5, dropouts 0.
//
// Errors: INVALID_ARGUMENT naming the key, the value found and what is allowed
absl::StatusOr<Gpt2Config> Gpt2ConfigFromJson(const std::string& json);

// What Gpt2ConfigFromJson reads and transformers.GPT2LMHeadModel loads.
std::string Gpt2ConfigToJson(const Gpt2Config& config);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_HF_CONFIG_H_
