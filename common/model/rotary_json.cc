#include "common/model/rotary_json.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/hf_json.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;
using Scaling = RotaryConfig::Scaling;

absl::Status ReadLlama3(const json& scaling, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLlama3;
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "low_freq_factor", rotary.low_freq_factor));
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "high_freq_factor", rotary.high_freq_factor));
  EPS_ASSIGN_OR_RETURN(rotary.original_context, ReadInteger(scaling, "original_max_position_embeddings"));
  return absl::OkStatus();
}

// transformers took max_position_embeddings over the original ones for the factor in some versions, whatever `factor`
// said; here, as in its version 5, llama.cpp and vLLM, `factor` counts where it is given.
absl::Status ReadYarn(const json& scaling, int64_t max_positions, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kYarn;
  EPS_ASSIGN_OR_RETURN(rotary.original_context,
                       ReadIntegerOr(scaling, "original_max_position_embeddings", max_positions));
  if (FindMember(scaling, "factor") == nullptr) {
    rotary.factor =
        static_cast<double>(max_positions) / static_cast<double>(std::max<int64_t>(rotary.original_context, 1));
  }
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "beta_fast", rotary.beta_fast));
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "beta_slow", rotary.beta_slow));
  EPS_RETURN_IF_ERROR(ReadFlag(scaling, "truncate", rotary.truncate));
  for (const char* key : {"mscale", "mscale_all_dim"}) {  // DeepSeek's, which attention_factor follows from
    if (const json* found = FindMember(scaling, key)) return BadMember(key, *found, "absent; say attention_factor");
  }
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "attention_factor", rotary.attention_factor));
  if (const json* found = FindMember(scaling, "attention_factor"); found != nullptr && rotary.attention_factor <= 0) {
    return BadMember("attention_factor", *found, "greater than 0, or absent");
  }
  return absl::OkStatus();
}

// Its errors name the member alone.
absl::Status ReadScaling(const json& scaling, int64_t max_positions, RotaryConfig& rotary) {
  for (const auto& [key, value] : scaling.items()) {
    if (value.is_object()) return BadMember(key, value, "a number, a word or absent: all layers turn alike here");
  }
  double rotated = 1;
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "partial_rotary_factor", rotated));
  if (rotated != 1) return BadMember("partial_rotary_factor", scaling["partial_rotary_factor"], "1");
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "rope_theta", rotary.theta));
  const json* type = FindMember(scaling, "rope_type");
  if (type == nullptr) type = FindMember(scaling, "type");  // its older name
  if (type == nullptr || *type == json("default")) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(ReadNumber(scaling, "factor", rotary.factor));
  if (*type == json("yarn")) return ReadYarn(scaling, max_positions, rotary);
  if (*type == json("llama3")) {
    EPS_RETURN_IF_ERROR(ReadLlama3(scaling, rotary));
  } else if (*type == json("linear")) {
    rotary.scaling = Scaling::kLinear;
  } else if (*type == json("dynamic")) {
    rotary.scaling = Scaling::kDynamic;
  } else {
    return BadMember("rope_type", *type, "\"default\", \"linear\", \"llama3\", \"yarn\" or \"dynamic\"");
  }
  // No default: other programs refuse it, too.
  return FindMember(scaling, "factor") != nullptr ? absl::OkStatus() : absl::InvalidArgumentError("factor: missing");
}

// One of the two forms, `name`, with a theta that it may have or not.
absl::Status ReadRotaryForm(const json& scaling, const std::string& name, int64_t max_positions, RotaryConfig& rotary) {
  if (!scaling.is_object()) return BadMember(name, scaling, "an object");
  const absl::Status status = ReadScaling(scaling, max_positions, rotary);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat(name, ".", status.message()));
}

}  // namespace

absl::Status ReadRotary(const json& object, int64_t max_positions, RotaryConfig& rotary) {
  const json* theta = FindMember(object, "rope_theta");
  const json* scaling = FindMember(object, "rope_scaling");
  const json* parameters = FindMember(object, "rope_parameters");
  EPS_RETURN_IF_ERROR(ReadNumber(object, "rope_theta", rotary.theta));
  const RotaryConfig unscaled = rotary;
  if (scaling != nullptr) EPS_RETURN_IF_ERROR(ReadRotaryForm(*scaling, "rope_scaling", max_positions, rotary));
  if (parameters == nullptr) return absl::OkStatus();
  const RotaryConfig older = rotary;
  rotary = unscaled;
  EPS_RETURN_IF_ERROR(ReadRotaryForm(*parameters, "rope_parameters", max_positions, rotary));
  if (theta != nullptr && rotary.theta != older.theta) {
    return BadMember("rope_theta", *theta, absl::StrCat("absent or ", rotary.theta, ", which rope_parameters has"));
  }
  if (scaling == nullptr) return absl::OkStatus();
  RotaryConfig of_scaling = older;
  if (FindMember(*scaling, "rope_theta") == nullptr) of_scaling.theta = rotary.theta;
  if (of_scaling == rotary) return absl::OkStatus();
  return BadMember("rope_scaling", *scaling, "absent, or the same as rope_parameters");
}

json RotaryToJson(const RotaryConfig& rotary) {
  json scaling = {{"factor", rotary.factor}};
  switch (rotary.scaling) {
    case Scaling::kNone:
      return nullptr;
    case Scaling::kLinear:
      scaling["rope_type"] = "linear";
      break;
    case Scaling::kDynamic:
      scaling["rope_type"] = "dynamic";
      break;
    case Scaling::kLlama3:
      scaling["rope_type"] = "llama3";
      scaling["low_freq_factor"] = rotary.low_freq_factor;
      scaling["high_freq_factor"] = rotary.high_freq_factor;
      scaling["original_max_position_embeddings"] = rotary.original_context;
      break;
    case Scaling::kYarn:
      scaling["rope_type"] = "yarn";
      scaling["beta_fast"] = rotary.beta_fast;
      scaling["beta_slow"] = rotary.beta_slow;
      if (rotary.attention_factor > 0) scaling["attention_factor"] = rotary.attention_factor;
      scaling["truncate"] = rotary.truncate;
      scaling["original_max_position_embeddings"] = rotary.original_context;
      break;
  }
  return scaling;
}

}  // namespace eps
