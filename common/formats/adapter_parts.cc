#include "common/formats/adapter_parts.h"

#include <cstddef>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/families.h"
#include "common/model/lora.h"
#include "common/model/tensor_roles.h"

namespace eps {
namespace {

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

// Of a classifier, whose head begins anew where the base has none, or other classes.
bool MayBeNew(const TensorSpec& tensor, const ModelConfig& model, const std::optional<ModelConfig>& base) {
  if (!model.is_classifier()) return false;
  const bool base_has_dense = base.has_value() && base->is_classifier();
  return IsHeadOutput(tensor.role) || (IsHeadDense(tensor.role) && !base_has_dense);
}

Modules ModulesOf(const ModelSpec& model, const std::optional<ModelConfig>& base) {
  Modules modules;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora != LoraPart::kNone) {
        modules[std::string(ModuleOf(tensor))].has_adapter = true;
        continue;
      }
      Module& module = modules[ParentOf(tensor.name)];
      const bool is_saved = !blob.frozen || MayBeNew(tensor, model.config, base);
      (is_saved ? module.saved : module.others).push_back(&tensor);
    }
  }
  return modules;
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

std::vector<std::string> TargetsOf(const ModelSpec& model, const Modules& modules) {
  std::set<std::string> adapted;
  for (const auto& [name, module] : modules.by_name) {
    if (module.has_adapter) adapted.insert(name);
  }
  return TargetsThatName(adapted, OtherModules(model, modules));
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
  if (TiedTable(model) == nullptr || module.saved.front()->role != TensorRole::kTokenTable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("module ", name,
                                                 " was trained (model.freeze), and is the head's table, ",
                                                 "too: PEFT would load it as the first alone; ", kMerge));
}

}  // namespace

absl::StatusOr<AdapterParts> PartsOfAdapter(const ModelSpec& model, const std::optional<ModelConfig>& base) {
  const Modules modules = ModulesOf(model, base);
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
      parts.tensors.push_back({.name = absl::StrCat(kPeftPrefix, tensor.name), .tensor = &tensor});
    }
  }
  return parts;
}

}  // namespace eps
