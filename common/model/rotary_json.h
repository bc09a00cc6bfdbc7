#ifndef EPS_COMMON_MODEL_ROTARY_JSON_H_
#define EPS_COMMON_MODEL_ROTARY_JSON_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "nlohmann/json_fwd.hpp"

namespace eps {

// What a config.json says of rotary positions: under rope_parameters with its theta, as transformers writes it from version 5
// on, or rope_scaling beside rope_theta. Where both are there they must say the same: programs differ in which of them they
// take. `rotary` has what counts where nothing is said.
// Errors: INVALID_ARGUMENT naming the member, the value found and what is allowed
absl::Status ReadRotary(const nlohmann::json& object, int64_t max_positions, RotaryConfig& rotary);

// rope_scaling; null where there is none.
nlohmann::json RotaryToJson(const RotaryConfig& rotary);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_ROTARY_JSON_H_
