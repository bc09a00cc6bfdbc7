#ifndef EPS_COMMON_SPEC_OPTIMIZER_CHECK_H_
#define EPS_COMMON_SPEC_OPTIMIZER_CHECK_H_

#include "common/model/model_config.h"
#include "common/spec/checker.h"
#include "common/spec/run_config.h"
#include "proto/run_spec.pb.h"

namespace eps {

// RunSpec's optimizer, from the proto and back.

// model: of which groups choose tensors.
// Errors: in `check`, naming the field; `out` is then filled in part only
void CheckOptimizer(const proto::Optimizer& optimizer, const ModelConfig& model, Checker& check, OptimizerConfig& out);

void WriteOptimizer(const OptimizerConfig& optimizer, proto::Optimizer& out);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_OPTIMIZER_CHECK_H_
