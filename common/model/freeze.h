#ifndef EPS_COMMON_MODEL_FREEZE_H_
#define EPS_COMMON_MODEL_FREEZE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace eps {

// The model with the tensors frozen that `patterns` choose (common/model/name_patterns.h). Of one with adapters all
// but these, and what a classifier's classes are computed by, is frozen before any pattern is looked at.
//
// A blob with tensors of both kinds becomes two of the same layers: one that is trained, with its name, and
// "NAME.frozen" behind it in pull order. In a layer's slot frozen blobs are last, and in a frozen blob tables and
// matrices are: kernels make the gradients of vectors in passing, and so need no room for more than what lies before.
//
// With a ModelConfig::frozen_format what of a block's matrices is frozen is a blob of its own,
// "NAME.quantized", behind these: vectors are few, adapters are what a run is about, tables of tokens are read row by
// row, and a router's small differences decide.
//
// Errors: INVALID_ARGUMENT model.freeze: every tensor is frozen · precision.frozen: no matrix of a block is ·
//         ChooseTensors'
absl::StatusOr<ModelSpec> Freeze(ModelSpec model, const std::vector<std::string>& patterns);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_FREEZE_H_
