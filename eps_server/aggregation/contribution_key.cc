#include "eps_server/aggregation/contribution_key.h"

#include "absl/strings/str_cat.h"

namespace eps::server {

std::string DebugString(const ContributionKey& key) {
  return absl::StrCat("step ", key.step.value(), ", blob ", key.blob.value(), ", use ", key.use, ", node ",
                      DebugString(key.node), ", ", DebugString(key.chunks));
}

}  // namespace eps::server
