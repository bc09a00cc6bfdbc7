#include "eps_server/step/vnode_shares.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/status_macros.h"
#include "eps_server/membership/membership.h"

namespace eps::server {
namespace {

std::vector<std::vector<int>> CutVnodes(absl::Span<const int> vnodes, absl::Span<const int> counts) {
  std::vector<std::vector<int>> parts;
  size_t next = 0;
  for (const int count : counts) {
    const absl::Span<const int> part = vnodes.subspan(next, static_cast<size_t>(count));
    parts.emplace_back(part.begin(), part.end());
    next += part.size();
  }
  EPS_CHECK(next == vnodes.size());
  return parts;
}

}  // namespace

std::vector<VnodeShare> ShareVnodes(absl::Span<const int> vnodes, absl::Span<const WorkerId> workers,
                                    absl::Span<const Groups::Formed> groups, absl::Span<const int> counts) {
  EPS_CHECK(counts.empty() || (counts.size() == workers.size() && groups.empty()));
  std::vector<WorkerId> order;  // groups first, each by rank
  for (const Groups::Formed& group : groups) order.insert(order.end(), group.members.begin(), group.members.end());
  for (const WorkerId worker : workers) {
    if (std::find(order.begin(), order.end(), worker) == order.end()) order.push_back(worker);
  }
  const std::vector<std::vector<int>> parts =
      counts.empty() ? SplitVnodes(vnodes, static_cast<int>(order.size())) : CutVnodes(vnodes, counts);
  std::vector<VnodeShare> shares;
  size_t next = 0;
  const auto add = [&](std::optional<GroupVnodes> group) {
    if (!parts[next].empty()) shares.push_back({order[next], parts[next], std::move(group)});
    ++next;
  };
  for (const Groups::Formed& group : groups) {
    GroupVnodes members{.group = group.group, .rank = 0, .vnodes = {}};
    for (size_t rank = 0; rank < group.members.size(); ++rank) members.vnodes.push_back(parts[next + rank]);
    const bool complete = std::none_of(members.vnodes.begin(), members.vnodes.end(),
                                       [](const std::vector<int>& held) { return held.empty(); });
    for (size_t rank = 0; rank < group.members.size(); ++rank) {
      members.rank = static_cast<int>(rank);
      add(complete ? std::optional<GroupVnodes>(members) : std::nullopt);
    }
  }
  while (next < order.size()) add(std::nullopt);
  return shares;
}

}  // namespace eps::server
