#include "common/formats/adapter_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/json_keys.h"
#include "common/base/json_text.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/formats/adapter_folder.h"
#include "common/formats/adapter_parts.h"
#include "common/model/families.h"
#include "common/model/hf_json.h"
#include "common/model/lora.h"
#include "common/model/tensor_roles.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kMaxShownValue = 40;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 24;  // target_modules may have thousands of names

// Members that are read.
constexpr const char* kRead[] = {"peft_type",      "r",    "lora_alpha",        "lora_dropout",
                                 "use_rslora",     "bias", "init_lora_weights", "base_model_name_or_path",
                                 "modules_to_save"};

// Members of PEFT 0.3 to 0.20 that change nothing of what is computed, or only say which weights have an adapter, which
// the tensors say themselves.
constexpr const char* kWithoutEffect[] = {
    "revision",       "task_type",           "inference_mode",    "auto_mapping",   "peft_version",
    "runtime_config", "target_modules",      "exclude_modules",   "layers_pattern", "layers_to_transform",
    "fan_in_fan_out", "ensure_weight_tying", "eva_config",        "corda_config",   "loftq_config",
    "lora_ga_config", "megatron_core",       "qalora_group_size", "merge_weights",  "enable_lora"};

// Values of init_lora_weights, in lower case, that leave the base's weights as they are.
constexpr const char* kOwnStarts[] = {"gaussian", "eva", "orthogonal", "mica"};

bool SaysNothing(const json& value) {
  return value.is_null() || value == json(false) || value == json("") || value.empty();
}

// A variant is asked for by a member of its own: what is not known may be one.
absl::Status RefuseUnknown(const json& config) {
  for (const auto& [name, value] : config.items()) {
    const auto is_this = [&name = name](const char* known) { return name == known; };
    const bool is_known = std::any_of(std::begin(kRead), std::end(kRead), is_this) ||
                          std::any_of(std::begin(kWithoutEffect), std::end(kWithoutEffect), is_this);
    if (is_known || SaysNothing(value)) continue;
    return BadMember(name, value, "absent, null, false or empty: adapters with it may be more than LoRA");
  }
  return absl::OkStatus();
}

absl::Status CheckBeginning(const json& config) {
  const json* start = FindMember(config, "init_lora_weights");
  if (start == nullptr || start->is_boolean()) return absl::OkStatus();
  for (const char* own : kOwnStarts) {
    if (start->is_string() && absl::AsciiStrToLower(start->get<std::string>()) == own) return absl::OkStatus();
  }
  return BadMember(
      "init_lora_weights", *start,
      absl::StrCat("true, false, ", absl::StrJoin(kOwnStarts, ", "),
                   ": with others it may have been trained beside other weights than the base's own; merge "
                   "it with PEFT (merge_and_unload), or let PEFT convert it (save_pretrained with "
                   "path_initial_model_for_weight_conversion, of some)"));
}

// As adapter_config.json has the members.
absl::Status CheckRanges(const LoraConfig& lora) {
  const absl::Status status = CheckLoraRanges("", lora);
  if (status.ok()) return status;
  absl::string_view message = status.message();
  for (const auto& [ours, theirs] :
       {std::pair(".rank", "r"), std::pair(".alpha", "lora_alpha"), std::pair(".dropout", "lora_dropout")}) {
    if (absl::ConsumePrefix(&message, ours)) return absl::InvalidArgumentError(absl::StrCat(theirs, message));
  }
  return status;
}

// By name, less the family's prefix.
std::map<std::string, const TensorSpec*> TensorsOf(const ModelSpec& model) {
  std::map<std::string, const TensorSpec*> tensors;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      tensors.emplace(absl::StripPrefix(tensor.name, FamilyOf(model.config.family).name_prefix), &tensor);
    }
  }
  return tensors;
}

// Of a name as PEFT has it: "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", or ".lora_A.default.weight".
struct PeftName {
  std::string own;      // "h.0.attn.c_attn.lora_A.weight": without the family's prefix
  std::string adapter;  // "default"
};

PeftName ParseName(absl::string_view name, absl::string_view family_prefix) {
  name = absl::StripPrefix(name, kPeftPrefix);
  name = absl::StripPrefix(name, family_prefix);
  for (const absl::string_view part : {".lora_A.", ".lora_B."}) {
    const size_t at = name.find(part);
    absl::string_view behind = at == absl::string_view::npos ? "" : name.substr(at + part.size());
    if (behind == "weight") return {.own = std::string(name)};
    if (!absl::ConsumeSuffix(&behind, ".weight")) continue;
    return {.own = absl::StrCat(name.substr(0, at), part, "weight"), .adapter = std::string(behind)};
  }
  return {.own = std::string(name)};
}

// How many classes a head that is saved whole tells apart; 0: none is there.
int64_t ClassesIn(const SafetensorsReader& file, const ModelConfig& base) {
  if (base.family != ModelFamily::kBert || base.is_classifier()) return 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    const PeftName name = ParseName(entry.name, FamilyOf(base.family).name_prefix);
    if (name.own == "classifier.weight" && entry.shape.size() == 2) return entry.shape[0];
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenTensorFile(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kAdapterTensorFile), older = folder + "/adapter_model.bin";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(older, ignored)) {
    return absl::NotFoundError(absl::StrCat(
        path, ": not there; adapter_model.bin is not read: save the adapter as safetensors (save_pretrained)"));
  }
  return SafetensorsReader::Open(path);
}

}  // namespace

absl::StatusOr<AdapterConfig> ParseAdapterConfig(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const json config, ParseJson(text, kMaxDepth));
  EPS_RETURN_IF_ERROR(CheckKeysOnce(text));
  if (!config.is_object()) return absl::InvalidArgumentError("found no object");
  const json* type = FindMember(config, "peft_type");
  if (type == nullptr || *type != "LORA") return BadMember("peft_type", type == nullptr ? json() : *type, "\"LORA\"");
  EPS_RETURN_IF_ERROR(RefuseUnknown(config));
  EPS_RETURN_IF_ERROR(CheckBeginning(config));
  if (const json* bias = FindMember(config, "bias"); bias != nullptr && *bias != "none") {
    return BadMember("bias", *bias, "\"none\"");
  }
  AdapterConfig result;
  EPS_ASSIGN_OR_RETURN(result.lora.rank, ReadInteger(config, "r"));
  result.lora.alpha = 8;  // PEFT's own, where it is not written
  EPS_RETURN_IF_ERROR(ReadNumber(config, "lora_alpha", result.lora.alpha));
  EPS_RETURN_IF_ERROR(ReadNumber(config, "lora_dropout", result.lora.dropout));
  EPS_RETURN_IF_ERROR(ReadFlag(config, "use_rslora", result.lora.rank_stabilized));
  EPS_RETURN_IF_ERROR(CheckRanges(result.lora));
  if (const json* modules = FindMember(config, "modules_to_save"); modules != nullptr) {
    result.has_modules = !SaysNothing(*modules);
  }
  const json* base = FindMember(config, "base_model_name_or_path");
  if (base != nullptr && base->is_string()) result.base_model = base->get<std::string>();
  return result;
}

absl::StatusOr<std::unique_ptr<AdapterReader>> AdapterReader::Open(const std::string& folder, const ModelConfig& base) {
  const std::string config_path = absl::StrCat(folder, "/", kAdapterConfigFile);
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path, kMaxConfigBytes));
  const absl::StatusOr<AdapterConfig> config = ParseAdapterConfig(text);
  EPS_RETURN_IF_ERROR_WITH(config.status(), config_path);
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> file, OpenTensorFile(folder));
  auto reader = std::unique_ptr<AdapterReader>(
      new AdapterReader(absl::StrCat(folder, "/", kAdapterTensorFile), std::move(file), config->base_model));
  EPS_RETURN_IF_ERROR(reader->FindTensors(base, *config));
  return reader;
}

std::string AdapterReader::base_values() const {
  const auto said = file_->metadata().find(kBaseValuesKey);
  return said == file_->metadata().end() ? "" : EscapeText(CutText(said->second, kMaxShownValue));
}

std::string AdapterReader::PlaceOf(const SafetensorsEntry& entry) const {
  return absl::StrCat(path_, ": tensor ", entry.name, " at byte ", entry.offset_bytes);
}

absl::Status AdapterReader::CheckEntry(const SafetensorsEntry& entry, const TensorSpec& tensor,
                                       const ModelSpec& model) const {
  if (tensor.role == TensorRole::kTokenTable && TiedTable(model) != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(PlaceOf(entry),
                     " is the head's table, too, and nothing says whether that is to be the same: merge "
                     "the adapter with the program that made it (PEFT's merge_and_unload)"));
  }
  if (entry.shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(entry), " has the shape ", ShapeText(entry.shape),
                                                   ", adapter_config.json and the model ask for ",
                                                   ShapeText(tensor.shape)));
  }
  if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(entry), " is ", entry.dtype, ", not F32, F16 or BF16"));
  }
  const auto there = entries_.find(tensor.name);
  if (there == entries_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(PlaceOf(entry), " is there twice, also as ", there->second->name));
}

absl::Status AdapterReader::FindTensors(const ModelConfig& base, const AdapterConfig& config) {
  ModelConfig adapted = base;
  adapted.lora = config.lora;
  if (const int64_t classes = ClassesIn(*file_, base); classes > 0) adapted.num_classes = classes;
  const absl::StatusOr<ModelSpec> all = BuildModel(adapted);  // with an adapter beside every product
  EPS_RETURN_IF_ERROR_WITH(all.status(), path_);
  const std::map<std::string, const TensorSpec*> known = TensorsOf(*all);
  std::set<std::string> modules;       // that have an adapter
  std::optional<std::string> adapter;  // whose A and B these are
  for (const SafetensorsEntry& entry : file_->entries()) {
    const PeftName name = ParseName(entry.name, FamilyOf(base.family).name_prefix);
    const auto found = known.find(name.own);
    if (found == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(PlaceOf(entry),
                       " is no A or B beside a product of the model's blocks, nor a tensor of the model: "
                       "it goes on top of another model, or is more than LoRA of these products"));
    }
    const TensorSpec& tensor = *found->second;
    EPS_RETURN_IF_ERROR(CheckEntry(entry, tensor, *all));
    entries_.emplace(tensor.name, &entry);
    if (tensor.lora == LoraPart::kNone) continue;
    modules.emplace(ModuleOf(tensor));
    if (!adapter.has_value()) adapter = name.adapter;
    if (*adapter == name.adapter) continue;
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(entry), " is of another adapter than those before it, \"",
                                                   name.adapter, "\" and not \"", *adapter, "\""));
  }
  if (modules.empty()) return absl::InvalidArgumentError(absl::StrCat(path_, ": holds no adapter"));
  if (config.has_modules && entries_.size() == 2 * modules.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": holds none of the whole modules that adapter_config.json names (modules_to_save)"));
  }
  EPS_ASSIGN_OR_RETURN(adapted.lora.targets, TargetsOf(known, modules));
  absl::StatusOr<ModelSpec> model = BuildModel(adapted);
  EPS_RETURN_IF_ERROR_WITH(model.status(), absl::StrCat(path_, ": of ", modules.size(), " adapted weights"));
  model_ = *std::move(model);
  return absl::OkStatus();
}

// Of `modules`, which have an adapter; none, where all have.
absl::StatusOr<std::vector<std::string>> AdapterReader::TargetsOf(const std::map<std::string, const TensorSpec*>& known,
                                                                  const std::set<std::string>& modules) const {
  std::set<std::string> others;
  for (const auto& [name, tensor] : known) {
    if (tensor->lora == LoraPart::kNone) continue;
    const std::string module(ModuleOf(*tensor));
    if (!modules.contains(module)) {
      others.insert(module);
    } else if (!entries_.contains(tensor->name)) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", tensor->name, " is missing"));
    }
  }
  return others.empty() ? std::vector<std::string>() : TargetsThatName(modules, others);
}

absl::Status AdapterReader::ReadPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) const {
  const SafetensorsEntry& entry = *entries_.at(tensor.name);
  EPS_RETURN_IF_ERROR(file_->ReadFloatsAt(entry, first_elem, values));
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  const int64_t elem = first_elem + (bad - values.begin());
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": tensor ", entry.name, ", element ", elem, " at byte ",
                   entry.offset_bytes + elem * (entry.num_bytes / tensor.num_elems()), ": ", *bad,
                   ", must be finite: this is of a run that diverged, or of a damaged file"));
}

}  // namespace eps
