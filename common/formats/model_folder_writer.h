#ifndef EPS_COMMON_FORMATS_MODEL_FOLDER_WRITER_H_
#define EPS_COMMON_FORMATS_MODEL_FOLDER_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"

namespace eps {

struct ModelFolderForm {
  std::string dtype = "F32";  // F32, F16 or BF16; 16-bit forms are rounded to nearest even
  // Of tensors in one file, at most; a tensor that is larger has a file of its own. What transformers takes.
  int64_t max_shard_bytes = 5'000'000'000;
  HfConfigForm config = {};  // of config.json
  ModelFiles files = {};     // that lie beside; a config.json among them is not taken
};

// Writes a folder that ModelFolder and transformers read: config.json, and tensors by the names that transformers has, in
// model.safetensors or, where that would be larger than a shard, in model-00001-of-0000N.safetensors and so on with
// model.safetensors.index.json. Tensors are asked for in the model's order, as WriteTensorFile says. The folder must not be
// there, or be empty; nothing half-done remains (WriteNewFolder). `model` has no adapters.
//
// Errors: CheckNewFolder's · INVALID_ARGUMENT dtype, max_shard_bytes · ModelConfigToJson's, WriteTensorFile's
absl::Status WriteModelFolder(const std::string& folder, const ModelSpec& model, const ModelFolderForm& form,
                              const ReadTensorPart& read);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_MODEL_FOLDER_WRITER_H_
