#ifndef EPS_COMMON_MODEL_HF_CONFIG_H_
#define EPS_COMMON_MODEL_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "nlohmann/json_fwd.hpp"

namespace eps {

// What adapters are called in a config.json, of checkpoints alone, whose tensors include theirs: no other program reads
// it, and no export has it.
inline constexpr char kLoraKey[] = "eps_lora";

// The config.json of a Hugging Face folder <-> ModelConfig, for every family (families.h). init_seed is no part of it.
//
// A config that asks for a computation that is not ours (another activation, attention scaled by layer, another scaling
// of positions, ...) is refused, so that no folder is trained as something else than it is. Keys that change no
// computation are ignored. Absent keys mean what they mean to transformers.
//
// Errors: INVALID_ARGUMENT naming the key, the value found and what is allowed
absl::StatusOr<ModelConfig> ModelConfigFromJson(const std::string& text);

// What ModelConfigFromJson reads as the same numbers, adapters among them, and transformers loads as the architecture that
// it names, beside tensors in F32; of adapters it knows nothing. What transformers has no architecture for (CheckSaysAll) is
// of a model_type that it does not know.
std::string ModelConfigToJson(const ModelConfig& config);

// `source`, the text of the config.json that the model began with (HfConfigForm::source), laid over with what `config`,
// adapters included, says otherwise now: ModelConfigFromJson reads it as `config`.
// Errors: INVALID_ARGUMENT what ModelConfigFromJson says of `source`, or that it is of another family
absl::StatusOr<std::string> LayOverSource(const ModelConfig& config, const std::string& source);

// What such a config.json says of adapters, as JSON; null, where there are none.
nlohmann::json LoraConfigToJson(const LoraConfig& lora);

// Whether other programs can have the model: a mix of the Llama family's parts may be none of transformers'
// architectures.
// Errors: INVALID_ARGUMENT naming the fields, and what others have
absl::Status CheckSaysAll(const ModelConfig& config);

// What a config.json says beside the model's numbers.
struct HfConfigForm {
  // The text that the model began with; "": there is none. Its members stay as they are, those too that nothing here
  // knows, but for what the model says otherwise now (layers of a grown one, classes, dropouts), architectures that the
  // tensors are not made for, the tensors' type, and what follows.
  std::string source;
  std::optional<int64_t> bos_token_id = std::nullopt;  // nullopt: as it is
  std::optional<int64_t> eos_token_id = std::nullopt;  // the first, where the source has several
};

// The same in that form, beside tensors of `dtype`: F32, F16 or BF16. `config` is of a model without adapters.
// Errors: INVALID_ARGUMENT source: what ModelConfigFromJson says of it, or that it is of another family ·
//          CheckSaysAll's
absl::StatusOr<std::string> ModelConfigToJson(const ModelConfig& config, const std::string& dtype,
                                              const HfConfigForm& form);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_HF_CONFIG_H_
