#include "common/model/hf_config.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_keys.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/hf_json.h"
#include "common/model/lora.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // what is read lies in the first two levels; what others add is seldom below the third

// Its errors name the member alone.
absl::StatusOr<LoraConfig> ReadLoraMembers(const json& members) {
  LoraConfig lora;
  EPS_ASSIGN_OR_RETURN(lora.rank, ReadInteger(members, "rank"));
  EPS_RETURN_IF_ERROR(ReadNumber(members, "alpha", lora.alpha));
  EPS_RETURN_IF_ERROR(ReadNumber(members, "dropout", lora.dropout));
  EPS_RETURN_IF_ERROR(ReadFlag(members, "rank_stabilized", lora.rank_stabilized));
  const json* targets = FindMember(members, "targets");
  if (targets == nullptr) return lora;
  if (!targets->is_array()) return BadMember("targets", *targets, "a list of names");
  for (const json& target : *targets) {
    if (!target.is_string()) return BadMember("targets", target, "a name");
    lora.targets.push_back(target.get<std::string>());
  }
  return lora;
}

absl::StatusOr<LoraConfig> ReadLora(const json& object) {
  const json* found = FindMember(object, kLoraKey);
  if (found == nullptr) return LoraConfig{};
  if (!found->is_object()) return BadMember(kLoraKey, *found, "an object");
  absl::StatusOr<LoraConfig> lora = ReadLoraMembers(*found);
  if (!lora.ok()) return absl::InvalidArgumentError(absl::StrCat(kLoraKey, ".", lora.status().message()));
  EPS_RETURN_IF_ERROR(CheckLoraRanges(kLoraKey, *lora));
  return lora;
}

absl::StatusOr<ModelConfig> FromObject(const json& object) {
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const json* type = FindMember(object, "model_type");
  if (type == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("model_type: missing, must be ", KnownModelTypes()));
  const Family* family = type->is_string() ? FamilyOfModelType(type->get_ref<const std::string&>()) : nullptr;
  if (family == nullptr) return BadMember("model_type", *type, absl::StrCat("one of ", KnownModelTypes()));
  if (const json* quantization = FindMember(object, "quantization_config"); quantization != nullptr) {
    return BadMember("quantization_config", *quantization,
                     "absent: take the model as it was before it was quantized, in F32, F16 or BF16");
  }
  EPS_ASSIGN_OR_RETURN(ModelConfig config, family->from_json(object));
  EPS_RETURN_IF_ERROR(family->check(config));
  EPS_ASSIGN_OR_RETURN(config.lora, ReadLora(object));
  return config;
}

bool AreAlike(const json& entries) {
  return entries.is_array() && !entries.empty() &&
         std::all_of(entries.begin(), entries.end(), [&](const json& entry) { return entry == entries.front(); });
}

// `source` with what `now` says and `was`, the same of the source itself, does not. What both say alike stays in the
// source's own words, which may be others: "mistral" with no window is a "llama", positions have two forms.
json Overlay(json source, const json& was, const json& now) {
  if (source["model_type"] == now["model_type"]) source["architectures"] = now["architectures"];
  for (const auto& [key, value] : now.items()) {
    if (was.value(key, json()) != value) source[key] = value;
  }
  // One entry for each layer, where they are alike. A family that counts its layers by another name has no such list:
  // it is a stranger's member, which stays as it is.
  const json *types = FindMember(source, "layer_types"), *layers = FindMember(now, "num_hidden_layers");
  if (types != nullptr && layers != nullptr && AreAlike(*types)) {
    source["layer_types"] = json::array_t(layers->get<size_t>(), json(types->front()));
  }
  return source;
}

absl::StatusOr<json> OverSource(const ModelConfig& config, const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const json source, ParseJson(text, kMaxDepth));
  EPS_ASSIGN_OR_RETURN(const ModelConfig was, FromObject(source));
  if (was.family != config.family) return BadMember("model_type", source["model_type"], "of the model's own family");
  const Family& family = FamilyOf(config.family);
  json object = Overlay(source, family.to_json(was), family.to_json(config));
  object.erase(kLoraKey);
  if (config.lora.is_on()) object[kLoraKey] = LoraConfigToJson(config.lora);
  return object;
}

// `dtype` is the name of transformers 5 for torch_dtype; both read the older one.
void SetDtype(const std::string& dtype, json& object) {
  const char* name = dtype == "F32" ? "float32" : dtype == "F16" ? "float16" : "bfloat16";
  const bool has_new_name = object.contains("dtype");
  if (has_new_name) object["dtype"] = name;
  if (!has_new_name || object.contains("torch_dtype")) object["torch_dtype"] = name;
}

// The one, or the first of several, of which the others stay.
void PutEndFirst(int64_t id, json& ends) {
  if (!ends.is_array()) {
    ends = id;
    return;
  }
  json all = json::array({id});
  for (const json& end : ends) {
    if (end != id) all.push_back(end);
  }
  ends = std::move(all);
}

std::string Dump(const json& object) { return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n"; }

}  // namespace

absl::StatusOr<ModelConfig> ModelConfigFromJson(const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const json object, ParseJson(text, kMaxDepth));
  EPS_RETURN_IF_ERROR(CheckKeysOnce(text));
  return FromObject(object);
}

json LoraConfigToJson(const LoraConfig& lora) {
  if (!lora.is_on()) return json();
  return {{"rank", lora.rank},
          {"alpha", lora.alpha},
          {"dropout", lora.dropout},
          {"rank_stabilized", lora.rank_stabilized},
          {"targets", lora.targets}};
}

absl::Status CheckSaysAll(const ModelConfig& config) {
  const Family& family = FamilyOf(config.family);
  const json type = family.to_json(config)["model_type"];
  if (family.own_model_type.empty() || type != json(family.own_model_type)) return absl::OkStatus();
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  const std::string experts =
      config.experts.are_on() ? absl::StrCat(", model.experts.normalize: ", flag(config.experts.normalizes)) : "";
  return absl::InvalidArgumentError(
      absl::StrCat("model.out_bias: ", flag(config.out_bias), ", model.qkv_bias: ", flag(config.qkv_bias),
                   ", model.qk_norm: ", flag(config.qk_norm), ", model.sliding_window: ", config.sliding_window,
                   experts, ": no other program has this mix, and its config.json is of model_type ", type.dump(),
                   ", which this one alone reads. Others have out_bias only with qkv_bias; with qk_norm both or "
                   "neither; without it both only without a window",
                   experts.empty() ? "" : ", and beside experts neither, with experts.normalize"));
}

std::string ModelConfigToJson(const ModelConfig& config) {
  json object = FamilyOf(config.family).to_json(config);
  if (config.lora.is_on()) object[kLoraKey] = LoraConfigToJson(config.lora);
  return Dump(object);
}

absl::StatusOr<std::string> LayOverSource(const ModelConfig& config, const std::string& source) {
  EPS_ASSIGN_OR_RETURN(const json object, OverSource(config, source));
  return Dump(object);
}

absl::StatusOr<std::string> ModelConfigToJson(const ModelConfig& config, const std::string& dtype,
                                              const HfConfigForm& form) {
  const Family& family = FamilyOf(config.family);
  EPS_RETURN_IF_ERROR(CheckSaysAll(config));
  EPS_CHECK(!config.lora.is_on());  // what others load has them merged
  json object = family.to_json(config);
  if (!form.source.empty()) {
    EPS_ASSIGN_OR_RETURN(object, OverSource(config, form.source));
  }
  SetDtype(dtype, object);
  if (form.bos_token_id) object["bos_token_id"] = *form.bos_token_id;
  if (form.eos_token_id) PutEndFirst(*form.eos_token_id, object["eos_token_id"]);
  return Dump(object);
}

}  // namespace eps
