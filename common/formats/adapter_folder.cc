#include "common/formats/adapter_folder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/new_folder.h"
#include "common/model/families.h"
#include "common/model/lora.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

// PEFT wraps the model twice.
constexpr char kNamePrefix[] = "base_model.model.";
constexpr char kMerge[] = "leave --adapter out, which merges all that was trained";

// "h.0.ln_1" of "h.0.ln_1.weight" and of "h.0.ln_1.bias".
std::string ParentOf(absl::string_view name) {
  const size_t dot = name.rfind('.');
  return std::string(name.substr(0, dot == absl::string_view::npos ? 0 : dot));
}

struct Module {
  std::vector<const TensorSpec*> saved, others;  // its own parameters, but adapters
  bool has_adapter = false;
};

struct Modules {
  std::vector<std::string> names;  // in the model's order
  std::map<std::string, Module> by_name;

  Module& operator[](const std::string& name) {
    const auto [module, is_new] = by_name.try_emplace(name);
    if (is_new) names.push_back(name);
    return module->second;
  }
};

bool IsHeadDense(TensorRole role) { return role == TensorRole::kHeadDenseWeight || role == TensorRole::kHeadDenseBias; }
bool IsHeadOutput(TensorRole role) { return role == TensorRole::kHeadTable || role == TensorRole::kHeadBias; }

// Of a classifier, whose head begins anew where the base has none, or other classes.
bool MayBeNew(const TensorSpec& tensor, const ModelConfig& model, const std::optional<ModelConfig>& base) {
  if (!model.is_classifier()) return false;
  const bool base_has_dense = base.has_value() && base->is_classifier();
  return IsHeadOutput(tensor.role) || (IsHeadDense(tensor.role) && !base_has_dense);
}

Modules ModulesOf(const ModelSpec& model, const AdapterForm& form) {
  Modules modules;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora != LoraPart::kNone) {
        modules[std::string(ModuleOf(tensor))].has_adapter = true;
        continue;
      }
      Module& module = modules[ParentOf(tensor.name)];
      const bool is_saved = !blob.frozen || MayBeNew(tensor, model.config, form.base_config);
      (is_saved ? module.saved : module.others).push_back(&tensor);
    }
  }
  return modules;
}

bool IsTied(const ModelSpec& model) {
  return std::none_of(model.blobs.begin(), model.blobs.end(), [](const BlobSpec& blob) {
    return std::any_of(blob.tensors.begin(), blob.tensors.end(),
                       [](const TensorSpec& tensor) { return tensor.role == TensorRole::kHeadTable; });
  });
}

// What other modules there are, in any of the family's models, whose names must not be taken for an adapted one's.
std::set<std::string> OtherModules(const ModelSpec& model, const Modules& modules) {
  std::set<std::string> others;
  const auto add = [&](std::string name) {
    for (; !name.empty(); name = ParentOf(name)) {
      const auto known = modules.by_name.find(name);
      if (known == modules.by_name.end() || !known->second.has_adapter) others.insert(name);
    }
  };
  for (const auto& [name, module] : modules.by_name) add(name);
  const Family& family = FamilyOf(model.config.family);
  add(ParentOf(family.tied_head_name));
  // A leftover lies somewhere, with an end like this: BERT's pooler in a model of masked tokens, and their head beside
  // one of classes.
  for (const std::string& suffix : family.ignored_suffixes) add(absl::StrCat(family.name_prefix, ParentOf(suffix)));
  return others;
}

// Every end of the name that begins with a part of it, the shortest first: "c_fc", "mlp.c_fc", ...
std::vector<std::string> EndsOf(const std::string& name) {
  std::vector<std::string> ends;
  for (size_t dot = name.rfind('.'); dot != std::string::npos;
       dot = dot == 0 ? std::string::npos : name.rfind('.', dot - 1)) {
    ends.push_back(name.substr(dot + 1));
  }
  ends.push_back(name);
  return ends;
}

// Of each adapted module the shortest end of its name that no other module's has: one that is found for two is the
// same.
std::vector<std::string> TargetsOf(const ModelSpec& model, const Modules& modules) {
  std::set<std::string> ends_of_others, targets;
  for (const std::string& other : OtherModules(model, modules)) {
    for (std::string& end : EndsOf(other)) ends_of_others.insert(std::move(end));
  }
  for (const auto& [name, module] : modules.by_name) {
    if (!module.has_adapter) continue;
    const std::vector<std::string> ends = EndsOf(name);
    const auto own = std::find_if(ends.begin(), ends.end() - 1,
                                  [&](const std::string& end) { return !ends_of_others.contains(end); });
    targets.insert(*own);
  }
  return {targets.begin(), targets.end()};
}

absl::Status CheckSaved(const ModelSpec& model, const Modules& modules, const std::string& name) {
  const Module& module = modules.by_name.at(name);
  if (module.has_adapter) {
    return absl::InvalidArgumentError(
        absl::StrCat("module ", name, " has an adapter, and ", module.saved.front()->name,
                     " was trained beside it (model.freeze): PEFT has the one or the other; ", kMerge));
  }
  std::string part = module.others.empty() ? "" : module.others.front()->name;
  const std::string head = ParentOf(FamilyOf(model.config.family).tied_head_name);
  for (const std::string& other : modules.names) {
    if (absl::StartsWith(other, name + ".")) part = other;
  }
  if (absl::StartsWith(head, name + ".")) part = head;
  if (!part.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("module ", name, ": ", module.saved.front()->name, " was trained, and ", part,
                     " was not, or is no own part of it (model.freeze): PEFT has whole modules alone; ", kMerge));
  }
  if (!IsTied(model) || module.saved.front()->role != TensorRole::kTokenTable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("module ", name,
                                                 " was trained (model.freeze), and is the head's table, ",
                                                 "too: PEFT would load it as the first alone; ", kMerge));
}

}  // namespace

absl::StatusOr<AdapterParts> PartsOfAdapter(const ModelSpec& model, const AdapterForm& form) {
  const Modules modules = ModulesOf(model, form);
  AdapterParts parts;
  parts.target_modules = TargetsOf(model, modules);
  std::set<const TensorSpec*> saved;
  for (const std::string& name : modules.names) {
    const Module& module = modules.by_name.at(name);
    if (module.saved.empty()) continue;
    EPS_RETURN_IF_ERROR(CheckSaved(model, modules, name));
    parts.modules_to_save.push_back(name);
    saved.insert(module.saved.begin(), module.saved.end());
  }
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora == LoraPart::kNone && !saved.contains(&tensor)) continue;
      parts.tensors.push_back({.name = absl::StrCat(kNamePrefix, tensor.name), .tensor = &tensor});
    }
  }
  return parts;
}

std::string AdapterConfigToJson(const ModelConfig& model, const AdapterForm& form, const AdapterParts& parts) {
  const LoraConfig& lora = model.lora;
  json object = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", nullptr},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"use_rslora", lora.rank_stabilized},
      {"lora_dropout", lora.dropout},
      {"bias", "none"},
      {"fan_in_fan_out", model.family == ModelFamily::kGpt2},  // transformers' Conv1D
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"target_modules", parts.target_modules},
      {"layers_to_transform", nullptr},
      {"modules_to_save", nullptr},
  };
  if (model.family == ModelFamily::kBert) object["task_type"] = model.is_classifier() ? json("SEQ_CLS") : json();
  if (!form.base_model.empty()) object["base_model_name_or_path"] = form.base_model;
  // A whole number is one there, and some programs take no other.
  if (lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15)
    object["lora_alpha"] = static_cast<int64_t>(lora.alpha);
  if (!parts.modules_to_save.empty()) object["modules_to_save"] = parts.modules_to_save;
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::Status WriteAdapterFolder(const std::string& folder, const ModelConfig& model, const AdapterForm& form,
                                const AdapterParts& parts, const ReadTensorPart& read) {
  EPS_RETURN_IF_ERROR(CheckTensorDtype(form.dtype));
  return WriteNewFolder(folder, [&](const std::string& aside) -> absl::Status {
    EPS_RETURN_IF_ERROR(WriteTensorFile(aside + "/adapter_model.safetensors", parts.tensors, form.dtype, read));
    EPS_RETURN_IF_ERROR(WriteModelFiles(form.files, aside));
    return WriteFileAtomically(aside + "/adapter_config.json", AdapterConfigToJson(model, form, parts));
  });
}

}  // namespace eps
