#ifndef EPS_COMMON_MODEL_TENSOR_ROLES_H_
#define EPS_COMMON_MODEL_TENSOR_ROLES_H_

#include "common/model/model_spec.h"

namespace eps {

// Parts of a head that are there, or new, as a whole each: what lies between the final norm and the table, and what the
// outputs, a classifier's classes, are computed by.
inline bool IsHeadDense(TensorRole role) {
  return role == TensorRole::kHeadDenseWeight || role == TensorRole::kHeadDenseBias;
}
inline bool IsHeadOutput(TensorRole role) { return role == TensorRole::kHeadTable || role == TensorRole::kHeadBias; }

// The token table that the head's is, too; null where the head has a table of its own.
const TensorSpec* TiedTable(const ModelSpec& model);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_TENSOR_ROLES_H_
