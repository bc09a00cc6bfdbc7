#include "common/model/hf_config.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/hf_json.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // what is read lies in the first two levels; what others add is seldom below the third

}  // namespace

absl::StatusOr<ModelConfig> ModelConfigFromJson(const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const json object, ParseJson(text, kMaxDepth));
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const json* type = FindMember(object, "model_type");
  if (type == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("model_type: missing, must be ", KnownModelTypes()));
  const Family* family = type->is_string() ? FamilyOfModelType(type->get_ref<const std::string&>()) : nullptr;
  if (family == nullptr) return BadMember("model_type", *type, absl::StrCat("one of ", KnownModelTypes()));
  EPS_ASSIGN_OR_RETURN(const ModelConfig config, family->from_json(object));
  EPS_RETURN_IF_ERROR(family->check(config));
  return config;
}

std::string ModelConfigToJson(const ModelConfig& config) {
  return FamilyOf(config.family).to_json(config).dump(2) + "\n";
}

}  // namespace eps
