#ifndef EPS_COMMON_SPEC_RUN_SPEC_CHECK_H_
#define EPS_COMMON_SPEC_RUN_SPEC_CHECK_H_

#include "absl/status/statusor.h"
#include "common/spec/check_context.h"
#include "common/spec/run_config.h"
#include "proto/run_spec.pb.h"

namespace eps {

// Fills defaults and checks every value.
//
// Errors: INVALID_ARGUMENT naming the first bad field, its value and what is allowed; read_model's
absl::StatusOr<RunConfig> CheckRunSpec(const proto::RunSpec& spec, const CheckContext& context);

// The run with every default written out; CheckRunSpec takes it back.
proto::RunSpec ToRunSpec(const RunConfig& config);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_RUN_SPEC_CHECK_H_
