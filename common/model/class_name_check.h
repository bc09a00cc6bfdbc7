#ifndef EPS_COMMON_MODEL_CLASS_NAME_CHECK_H_
#define EPS_COMMON_MODEL_CLASS_NAME_CHECK_H_

#include "absl/status/status.h"
#include "common/model/model_config.h"

namespace eps {

// Whether config.json and a run can hold the names of the model's classes, where it has any.
// Errors: INVALID_ARGUMENT naming model.class_names, and the name that is empty, too long, not UTF-8 or there twice; not as
//         many as classes; too many bytes in all
absl::Status CheckClassNames(const ModelConfig& config);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_CLASS_NAME_CHECK_H_
