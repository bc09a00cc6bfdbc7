#include "common/formats/adapter_folder.h"

#include <cmath>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/new_folder.h"
#include "nlohmann/json.hpp"

namespace eps {

std::string AdapterConfigToJson(const ModelConfig& model, const AdapterForm& form, const AdapterParts& parts) {
  const LoraConfig& lora = model.lora;
  nlohmann::json object = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", nullptr},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"use_rslora", lora.rank_stabilized},
      {"lora_dropout", lora.dropout},
      {"bias", "none"},
      {"fan_in_fan_out", !model.has_out_in_weights()},  // transformers' Conv1D
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"target_modules", parts.target_modules},
      {"layers_to_transform", nullptr},
      {"modules_to_save", nullptr},
  };
  if (model.family == ModelFamily::kBert) {
    object["task_type"] = model.is_classifier() ? nlohmann::json("SEQ_CLS") : nlohmann::json();
  }
  if (!form.base_model.empty()) object["base_model_name_or_path"] = form.base_model;
  // A whole number is one there, and some programs take no other.
  if (lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15) {
    object["lora_alpha"] = static_cast<int64_t>(lora.alpha);
  }
  if (!parts.modules_to_save.empty()) object["modules_to_save"] = parts.modules_to_save;
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::Status WriteAdapterFolder(const std::string& folder, const ModelConfig& model, const AdapterForm& form,
                                const AdapterParts& parts, const ReadTensorPart& read) {
  EPS_RETURN_IF_ERROR(CheckTensorDtype(form.dtype));
  std::map<std::string, std::string> said;
  if (!form.base_values.empty()) said[kBaseValuesKey] = form.base_values;
  return WriteNewFolder(folder, [&](const std::string& aside) -> absl::Status {
    EPS_RETURN_IF_ERROR(
        WriteTensorFile(absl::StrCat(aside, "/", kAdapterTensorFile), parts.tensors, form.dtype, read, said));
    EPS_RETURN_IF_ERROR(WriteModelFiles(form.files, aside));
    return WriteFileAtomically(absl::StrCat(aside, "/", kAdapterConfigFile), AdapterConfigToJson(model, form, parts));
  });
}

}  // namespace eps
