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

// Writes a folder that ModelFolder reads as adapter.model(). A file of the base is linked; it is copied where it cannot
// be linked or is another user's, and copied without the replaced tensors where the adapter has some of them itself.
// kAdaptersFile holds all of the adapter's tensors, F32; the index covers both; config.json is the base's with what the
// adapter makes of the model; `files` lie beside, but for a config.json. Returns the bytes copied. The folder must not
// be there, or be empty; nothing half-done remains (WriteNewFolder).
//
// base: opened for adapter.model().config
// Memory: 2 MiB; of the system, 64 MiB that wait for the disk
// Errors: INVALID_ARGUMENT the base has a file of that name, or a tensor is in neither of both ·
//         AdapterReader::ReadPart's, WriteNewFolder's, LayOverSource's · the system's, naming the file
absl::StatusOr<int64_t> WriteAdaptedFolder(const std::string& folder, const ModelFolder& base,
                                           const AdapterReader& adapter, const ModelFiles& files);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTED_FOLDER_H_
