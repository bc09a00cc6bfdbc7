#include "common/spec/parameter_groups.h"

#include <cstddef>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/name_patterns.h"

namespace eps {

absl::StatusOr<std::map<std::string, int>> AssignParameterGroups(const ModelSpec& model,
                                                                 const std::vector<ParameterGroupConfig>& groups) {
  std::set<std::string> trained;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (!blob.frozen) trained.insert(tensor.name);
    }
  }
  std::map<std::string, int> group_of;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string field = absl::StrCat("optimizer.groups[", i, "].tensors");
    if (groups[i].tensors.empty()) return absl::InvalidArgumentError(absl::StrCat(field, ": missing; \"*\" is all"));
    EPS_ASSIGN_OR_RETURN(const auto chosen, ChooseTensors(model, groups[i].tensors, field));
    bool any = false;
    for (const auto& [name, is_chosen] : chosen) {
      if (!is_chosen || trained.count(name) == 0) continue;
      any = true;
      group_of[name] = static_cast<int>(i);
    }
    if (!any) return absl::InvalidArgumentError(absl::StrCat(field, ": chooses no tensor that is trained"));
  }
  return group_of;
}

}  // namespace eps
