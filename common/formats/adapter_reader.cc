#include "common/formats/adapter_reader.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
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

constexpr int kMaxDepth = 32;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 24;  // target_modules may have thousands of names
constexpr char kTensorFile[] = "adapter_model.safetensors";

// By which of its members an adapter is more, or something else, than A and B beside a weight; absent, null and empty
// they are none of that.
constexpr const char* kOthers[] = {"use_dora",          "lora_bias",       "rank_pattern",
                                   "alpha_pattern",     "modules_to_save", "layer_replication",
                                   "target_parameters", "use_qalora",      "trainable_token_indices",
                                   "megatron_config",   "arrow_config",    "alora_invocation_tokens"};

// How A began changes nothing; other ways change the base's weights, too.
constexpr const char* kOwnStarts[] = {"gaussian", "eva", "orthogonal"};

bool SaysNothing(const json& value) { return value.is_null() || value == json(false) || value.empty(); }

absl::Status RefuseOthers(const json& config) {
  for (const char* member : kOthers) {
    const json* found = FindMember(config, member);
    // A number or a text is never empty; false is.
    if (found == nullptr || SaysNothing(*found)) continue;
    return BadMember(member, *found, "absent, null, false or empty: such adapters are not known here");
  }
  if (const json* bias = FindMember(config, "bias"); bias != nullptr && *bias != "none") {
    return BadMember("bias", *bias, "\"none\"");
  }
  const json* start = FindMember(config, "init_lora_weights");
  if (start == nullptr || start->is_boolean()) return absl::OkStatus();
  for (const char* own : kOwnStarts) {
    if (*start == own) return absl::OkStatus();
  }
  return BadMember("init_lora_weights", *start,
                   absl::StrCat("true, false, ", absl::StrJoin(kOwnStarts, " or "),
                                ": with others the base's weights are not its own; convert the adapter with PEFT "
                                "(save_pretrained with path_initial_model_for_weight_conversion)"));
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("(", absl::StrJoin(shape, ", "), ")"); }

// Of the model with an adapter of that rank beside every product.
absl::StatusOr<ModelSpec> WithAllAdapters(ModelConfig config, const LoraConfig& lora) {
  config.lora = lora;
  config.lora.targets.clear();
  return BuildModel(config);
}

std::map<std::string, const TensorSpec*> AdaptersOf(const ModelSpec& model) {
  std::map<std::string, const TensorSpec*> adapters;  // by name, less the family's prefix
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora == LoraPart::kNone) continue;
      adapters.emplace(absl::StripPrefix(tensor.name, FamilyOf(model.config.family).name_prefix), &tensor);
    }
  }
  return adapters;
}

// "h.0.attn.c_attn.lora_A.weight" of what PEFT calls so, with what it puts in front of all, and, in some versions, the
// adapter's own name within ("lora_A.default.weight").
std::string OwnNameOf(absl::string_view name, absl::string_view family_prefix) {
  name = absl::StripPrefix(name, "base_model.model.");
  name = absl::StripPrefix(name, family_prefix);
  for (const char* part : {".lora_A.", ".lora_B."}) {
    const size_t at = name.find(part);
    if (at == absl::string_view::npos || !absl::EndsWith(name, ".weight")) continue;
    return absl::StrCat(name.substr(0, at), part, "weight");
  }
  return std::string(name);
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenTensorFile(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kTensorFile), older = folder + "/adapter_model.bin";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(older, ignored)) {
    return absl::NotFoundError(absl::StrCat(
        path, ": not there; adapter_model.bin is not read: save the adapter as safetensors (save_pretrained)"));
  }
  return SafetensorsReader::Open(path);
}

}  // namespace

absl::StatusOr<LoraConfig> ParseAdapterConfig(absl::string_view text) {
  EPS_ASSIGN_OR_RETURN(const json config, ParseJson(text, kMaxDepth));
  EPS_RETURN_IF_ERROR(CheckKeysOnce(text));
  if (!config.is_object()) return absl::InvalidArgumentError("found no object");
  const json* type = FindMember(config, "peft_type");
  if (type == nullptr || *type != "LORA") return BadMember("peft_type", type == nullptr ? json() : *type, "\"LORA\"");
  EPS_RETURN_IF_ERROR(RefuseOthers(config));
  LoraConfig lora;
  EPS_ASSIGN_OR_RETURN(lora.rank, ReadInteger(config, "r"));
  lora.alpha = 8;  // PEFT's own, where it is not written
  EPS_RETURN_IF_ERROR(ReadNumber(config, "lora_alpha", lora.alpha));
  EPS_RETURN_IF_ERROR(ReadNumber(config, "lora_dropout", lora.dropout));
  EPS_RETURN_IF_ERROR(ReadFlag(config, "use_rslora", lora.rank_stabilized));
  EPS_RETURN_IF_ERROR(CheckLoraRanges("r, lora_alpha and lora_dropout as model.lora", lora));
  return lora;
}

absl::StatusOr<std::unique_ptr<AdapterReader>> AdapterReader::Open(const std::string& folder, const ModelConfig& base) {
  const std::string config_path = folder + "/adapter_config.json";
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path, kMaxConfigBytes));
  const absl::StatusOr<LoraConfig> lora = ParseAdapterConfig(text);
  EPS_RETURN_IF_ERROR_WITH(lora.status(), config_path);
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> file, OpenTensorFile(folder));
  auto reader =
      std::unique_ptr<AdapterReader>(new AdapterReader(absl::StrCat(folder, "/", kTensorFile), std::move(file)));
  EPS_RETURN_IF_ERROR(reader->FindTensors(base, *lora));
  return reader;
}

absl::Status AdapterReader::FindTensors(const ModelConfig& base, const LoraConfig& lora) {
  EPS_ASSIGN_OR_RETURN(const ModelSpec all, WithAllAdapters(base, lora));
  const std::map<std::string, const TensorSpec*> known = AdaptersOf(all);
  std::set<std::string> adapted;
  for (const SafetensorsEntry& entry : file_->entries()) {
    const std::string where = absl::StrCat(path_, ": tensor ", entry.name, " at byte ", entry.offset_bytes);
    const auto found = known.find(OwnNameOf(entry.name, FamilyOf(base.family).name_prefix));
    if (found == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is no adapter of a product of the model's blocks, as ", known.begin()->second->name,
                       " would be: it goes on top of another model, or is more than LoRA of these"));
    }
    const TensorSpec& tensor = *found->second;
    if (entry.shape != tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has the shape ", ShapeText(entry.shape),
                                                     ", adapter_config.json and the model ask for ",
                                                     ShapeText(tensor.shape)));
    }
    if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
      return absl::InvalidArgumentError(absl::StrCat(where, " is ", entry.dtype, ", not F32, F16 or BF16"));
    }
    if (!entries_.emplace(tensor.name, &entry).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is there twice, also as ", entries_.at(tensor.name)->name));
    }
    adapted.emplace(ModuleOf(tensor));
  }
  if (adapted.empty()) return absl::InvalidArgumentError(absl::StrCat(path_, ": holds no adapter"));
  std::set<std::string> others;
  for (const auto& [name, tensor] : known) {
    const std::string module(ModuleOf(*tensor));
    if (!adapted.contains(module)) {
      others.insert(module);
    } else if (!entries_.contains(tensor->name)) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", tensor->name, " is missing"));
    }
  }
  ModelConfig config = base;
  config.lora = lora;
  if (!others.empty()) config.lora.targets = TargetsThatName(adapted, others);
  absl::StatusOr<ModelSpec> model = BuildModel(config);
  EPS_RETURN_IF_ERROR_WITH(model.status(), absl::StrCat(path_, ": of ", adapted.size(), " adapted weights"));
  model_ = *std::move(model);
  return absl::OkStatus();
}

absl::Status AdapterReader::ReadPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) const {
  return file_->ReadFloatsAt(*entries_.at(tensor.name), first_elem, values);
}

}  // namespace eps
