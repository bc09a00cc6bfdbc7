#ifndef EPS_COMMON_FORMATS_MODEL_FOLDER_WRITER_H_
#define EPS_COMMON_FORMATS_MODEL_FOLDER_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/formats/model_folder_files.h"
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

// Gives the elements [first_elem, first_elem + values.size()) of a tensor.
using ReadTensorPart =
    std::function<absl::Status(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values)>;

// Writes a folder that ModelFolder and transformers read: config.json, and tensors by the names that transformers has, in
// model.safetensors or, where that would be larger than a shard, in model-00001-of-0000N.safetensors and so on with
// model.safetensors.index.json. Tensors are asked for in the model's order, each from its start to its end, in parts of at
// most kChunkElems. The folder must not be there, or be empty; it is written aside and renamed, so that nothing half-done
// remains.
//
// Memory: 2 MiB beside `read`'s own, whatever the model; of the system, 64 MiB that wait for the disk
// Errors: CheckNewFolder's · INVALID_ARGUMENT dtype, max_shard_bytes, ModelConfigToJson's, or the tensor and element of a
//         value that is not finite, or too large for `dtype` · the system's, naming the file · those of `read`
absl::Status WriteModelFolder(const std::string& folder, const ModelSpec& model, const ModelFolderForm& form,
                              const ReadTensorPart& read);

// Errors: ALREADY_EXISTS the folder is there and not empty
absl::Status CheckNewFolder(const std::string& folder);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_MODEL_FOLDER_WRITER_H_
