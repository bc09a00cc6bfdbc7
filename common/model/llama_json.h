#ifndef EPS_COMMON_MODEL_LLAMA_JSON_H_
#define EPS_COMMON_MODEL_LLAMA_JSON_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"
#include "nlohmann/json_fwd.hpp"

// The config.json of the Llama family: Family::from_json and to_json.
namespace eps {

// Of a mix of parts that no other program has, so that none takes it for a model that it knows.
inline constexpr absl::string_view kOwnLlamaType = "eps_llama";

absl::StatusOr<ModelConfig> LlamaFromJson(const nlohmann::json& object);
nlohmann::json LlamaToJson(const ModelConfig& config);

// Whether its file is of that type, whose tensors have names of their own.
bool IsMixtral(const ModelConfig& config);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_LLAMA_JSON_H_
