#ifndef EPS_COMMON_FORMATS_ADAPTED_FOLDER_H_
#define EPS_COMMON_FORMATS_ADAPTED_FOLDER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/formats/adapter_reader.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_files.h"

namespace eps {

inline constexpr char kAdaptersFile[] = "adapters.safetensors";

// Writes a folder that ModelFolder reads as `adapter`'s model, and returns how many bytes of `base` were copied: the
// files of `base` that have its tensors, linked, or copied where that cannot be, or they are another user's, or lack
// what the adapter has in the place of some of them; what the adapter has in kAdaptersFile, F32; an index over both;
// config.json with eps_lora. `files` lie beside, with the base's config.json among them. The folder must not be there,
// or be empty; nothing half-done remains (WriteNewFolder). `base` is opened for adapter.model()'s config.
//
// Memory: WriteTensorFile's
// Errors: INVALID_ARGUMENT the base has a file of that name, or a tensor is in neither of both ·
//         AdapterReader::ReadPart's, WriteNewFolder's, LayOverSource's · the system's, naming the file
absl::StatusOr<int64_t> WriteAdaptedFolder(const std::string& folder, const ModelFolder& base,
                                           const AdapterReader& adapter, const ModelFiles& files);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTED_FOLDER_H_
