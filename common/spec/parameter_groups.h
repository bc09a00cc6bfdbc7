#ifndef EPS_COMMON_SPEC_PARAMETER_GROUPS_H_
#define EPS_COMMON_SPEC_PARAMETER_GROUPS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"

namespace eps {

inline constexpr int kMaxParameterGroups = 64;
inline constexpr int kMaxParameterGroupPatterns = 256;  // of all groups

// The place in `groups` (OptimizerConfig's) of each tensor that is in one, by its name: the last that chooses it.
// Errors: INVALID_ARGUMENT, which names optimizer.groups[i].tensors: no pattern; no tensor that is trained is chosen · ChooseTensors' (common/model/name_patterns.h)
absl::StatusOr<std::map<std::string, int>> AssignParameterGroups(const ModelSpec& model,
                                                                 const std::vector<ParameterGroupConfig>& groups);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_PARAMETER_GROUPS_H_
