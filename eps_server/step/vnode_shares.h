#ifndef EPS_SERVER_STEP_VNODE_SHARES_H_
#define EPS_SERVER_STEP_VNODE_SHARES_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/vnode_batch.h"
#include "eps_server/membership/groups.h"

namespace eps::server {

// What one worker is given.
struct VnodeShare {
  WorkerId worker;
  std::vector<int> vnodes;  // rising, never empty
  std::optional<GroupVnodes> group;
};

// Shares `vnodes` (rising) out among `workers` (rising, at least one), in ranges of `counts` (by worker, together all
// of them), or, if that is empty, that differ by one at most. The members of a group, who take no counts, get
// neighbouring ranges, so that what it sums are large subtrees; a group of which a member gets nothing goes without:
// each of it alone.
std::vector<VnodeShare> ShareVnodes(absl::Span<const int> vnodes, absl::Span<const WorkerId> workers,
                                    absl::Span<const Groups::Formed> groups, absl::Span<const int> counts = {});

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_VNODE_SHARES_H_
