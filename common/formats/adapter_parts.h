#ifndef EPS_COMMON_FORMATS_ADAPTER_PARTS_H_
#define EPS_COMMON_FORMATS_ADAPTER_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace eps {

// What PEFT, which wraps a model twice, puts in front of the names of its tensors.
inline constexpr char kPeftPrefix[] = "base_model.model.";

// What a folder of PEFT's (adapter_folder.h) holds of a model.
struct AdapterParts {
  // Which modules have an adapter: those named so, and those whose names end with such a name behind a dot.
  std::vector<std::string> target_modules;
  // Which are taken whole in place of the base's, by their full names: what was trained, and of a classifier what the
  // base may not have.
  std::vector<std::string> modules_to_save;
  std::vector<NamedTensor> tensors;  // of `model`, adapters and the saved modules', in its order
};

// Of a model with adapters, whose frozen blobs are those of its run. `base` is the model without them, which other
// programs put them beside; nullopt: it is not known.
// Errors: INVALID_ARGUMENT naming the module, and what to do: PEFT can have no part of a module, no module that has an
//         adapter as well, and no token table that is the head's, too
absl::StatusOr<AdapterParts> PartsOfAdapter(const ModelSpec& model, const std::optional<ModelConfig>& base);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_ADAPTER_PARTS_H_
