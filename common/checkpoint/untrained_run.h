#ifndef EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_
#define EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

// Runs that compute with a model and make no step: that evaluate it, or serve it.
namespace eps {

// `run` with `overrides`, and without what only training takes memory for: of the model all is frozen but a single small
// tensor, as a run must have one that trains, and what the run trained of the blocks' matrices beside others that are in
// a quantized format, as these are to stay what they are. With precision.frozen among the overrides all of them are in
// that format, whatever the run froze. What is of training alone (optimizer, layer dropping) is left out before, so
// that no override is refused because of it; so are gradients' form, loss scale and precision.tf32, where a wire is asked
// for.
//
// Errors: WithOverrides'
absl::StatusOr<RunConfig> WithoutTraining(RunConfig run, std::vector<FieldOverride> overrides);

// Takes precision.frozen out of the overrides, for WithoutTraining, as a run that froze nothing is refused with it.
std::vector<FieldOverride> TakeFrozenFormat(std::vector<FieldOverride>& overrides);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_
