#ifndef EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_
#define EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

// Runs that compute with a model and make no step: that evaluate it, or serve it.
namespace eps {

// `run` with `overrides`, and without what only training takes memory for: of the model all is frozen but a single small
// tensor, as a run must have one that trains. Matrices that were in a quantized format stay so where all of the blocks'
// were, as with adapters. Where the run trained some of them all are in the wire dtype, which holds what they are; but in
// FP16, which may not, those that were trained stay so, with what that takes. With precision.frozen among the overrides
// all are in that format, whatever the run froze. What is of training alone (optimizer, layer dropping) is left out
// before, so that no override is refused because of it; so are gradients' form, loss scale and precision.tf32, where
// another wire is asked for.
//
// Errors: WithOverrides'
absl::StatusOr<RunConfig> WithoutTraining(RunConfig run, std::vector<FieldOverride> overrides);

// Takes precision.frozen out of the overrides, for WithoutTraining, as a run that froze nothing is refused with it.
std::vector<FieldOverride> TakeFrozenFormat(std::vector<FieldOverride>& overrides);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_
