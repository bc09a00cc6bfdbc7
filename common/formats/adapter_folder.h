#ifndef EPS_COMMON_FORMATS_ADAPTER_FOLDER_H_
#define EPS_COMMON_FORMATS_ADAPTER_FOLDER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace eps {

// A folder as PEFT has it: adapter_config.json and adapter_model.safetensors, which go on top of the model that they
// were trained beside. docs/formats.md, Adapters.

struct AdapterForm {
  std::string dtype = "F32";                              // F32, F16 or BF16; 16-bit forms are rounded to nearest even
  std::string base_model;                                 // where the model without adapters is; "": nowhere
  std::optional<ModelConfig> base_config = std::nullopt;  // of that model; nullopt: not known
  ModelFiles files = {};                                  // that lie beside
};

// What such a folder holds of a model.
struct AdapterParts {
  // Which modules have an adapter: those named so, and those whose names end with such a name behind a dot.
  std::vector<std::string> target_modules;
  // Which are taken whole in place of the base's, by their full names: what was trained, and of a classifier what the
  // base may not have.
  std::vector<std::string> modules_to_save;
  std::vector<NamedTensor> tensors;  // of `model`, adapters and the saved modules', in its order
};

// Of a model with adapters, whose frozen blobs are those of its run.
// Errors: INVALID_ARGUMENT naming the module, and what to do: PEFT can have no part of a module, no module that has an
//         adapter as well, and no token table that is the head's, too
absl::StatusOr<AdapterParts> PartsOfAdapter(const ModelSpec& model, const AdapterForm& form);

// The text of adapter_config.json.
std::string AdapterConfigToJson(const ModelConfig& model, const AdapterForm& form, const AdapterParts& parts);

// Writes the folder, which must not be there, or be empty; nothing half-done remains (WriteNewFolder).
// Errors: INVALID_ARGUMENT dtype · WriteNewFolder's, WriteTensorFile's
absl::Status WriteAdapterFolder(const std::string& folder, const ModelConfig& model, const AdapterForm& form,
                                const AdapterParts& parts, const ReadTensorPart& read);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTER_FOLDER_H_
