#ifndef EPS_COMMON_SPEC_MODEL_CHECK_H_
#define EPS_COMMON_SPEC_MODEL_CHECK_H_

#include "absl/status/status.h"
#include "common/spec/check_context.h"
#include "common/spec/run_config.h"
#include "proto/run_spec.pb.h"

namespace eps {

// RunSpec's model, from the proto and back.

// Fills config.model and config.model_from. The shape is that of the RunSpec, or that of the folder `model.from`.
//
// Errors: INVALID_ARGUMENT naming the first bad field; read_model's, behind "model.from"
absl::Status CheckModel(const proto::RunSpec& spec, const CheckContext& context, RunConfig& config);

// The whole shape, beside `from` where there is one: CheckModel without read_model takes it back.
void WriteModel(const RunConfig& config, proto::Model& out);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_MODEL_CHECK_H_
