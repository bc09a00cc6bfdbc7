#ifndef EPS_SERVER_OPTIMIZER_TENSOR_GROUPS_H_
#define EPS_SERVER_OPTIMIZER_TENSOR_GROUPS_H_

#include <vector>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/update_scalars.h"

namespace eps::server {

// The tensors of a blob by what distinguishes their updates.
struct TensorGroups {
  std::vector<TensorGroup> groups;
  // By group: whether its learning rate is multiplied by a trust ratio. Such a group is one tensor.
  std::vector<bool> has_trust_ratio;
  std::vector<std::vector<GroupRange>> ranges;  // by chunk; neighbours are of different groups
};

// By blob; nothing of frozen ones. A tensor's padding goes with the tensor.
// Pre: the RunSpec's check has passed run.optimizer.groups for this model
std::vector<TensorGroups> GroupTensors(const ModelSpec& model, const OptimizerConfig& optimizer);

// Of LAMB: |weights| / |step| by their sums of squares, 1 where either is 0; at most max_trust_ratio.
double TrustRatio(const StepSquares& squares, double max_trust_ratio);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_TENSOR_GROUPS_H_
