#ifndef EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_
#define EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

// Runs that compute with a model and make no step: that evaluate it, or serve it.
namespace eps {

// `run` without what only training takes memory for: of the model all is frozen but a single small tensor, as a run must
// have one that trains. Matrices that were in a quantized format stay so where all of the blocks' were, as with adapters;
// where some were not, all are in the wire dtype, which holds what they are.
//
// form: laid over that: precision.frozen, which rounds the blocks' matrices, whatever the run froze.
// Errors: WithOverrides'
absl::StatusOr<RunConfig> WithoutTraining(RunConfig run, const std::vector<FieldOverride>& form);

// Takes out of `overrides` what has a meaning only where all is frozen, for WithoutTraining.
std::vector<FieldOverride> TakeForm(std::vector<FieldOverride>& overrides);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_UNTRAINED_RUN_H_
