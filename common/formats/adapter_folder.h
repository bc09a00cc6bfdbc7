#ifndef EPS_COMMON_FORMATS_ADAPTER_FOLDER_H_
#define EPS_COMMON_FORMATS_ADAPTER_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "common/formats/adapter_parts.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/model_config.h"

namespace eps {

// A folder as PEFT has it: adapter_config.json and adapter_model.safetensors, which go on top of the model that they
// were trained beside. docs/formats.md, Adapters.

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterTensorFile[] = "adapter_model.safetensors";
inline constexpr char kBaseValuesKey[] = "eps_base_values";  // of that file's metadata

struct AdapterForm {
  std::string dtype = "F32";  // F32, F16 or BF16; 16-bit forms are rounded to nearest even
  std::string base_model;     // where the model without adapters is; "": nowhere
  std::string base_values;    // what its blocks' matrices were rounded to beside them: "NF4", "BF16"; "": not said
  ModelFiles files = {};      // that lie beside
};

// The text of adapter_config.json.
std::string AdapterConfigToJson(const ModelConfig& model, const AdapterForm& form, const AdapterParts& parts);

// Writes the folder, which must not be there, or be empty; nothing half-done remains (WriteNewFolder).
// Errors: INVALID_ARGUMENT dtype · WriteNewFolder's, WriteTensorFile's
absl::Status WriteAdapterFolder(const std::string& folder, const ModelConfig& model, const AdapterForm& form,
                                const AdapterParts& parts, const ReadTensorPart& read);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTER_FOLDER_H_
