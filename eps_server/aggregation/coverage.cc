#include "eps_server/aggregation/coverage.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace eps::server {

bool Coverage::Covers(TreeNode node) const {
  return whole_ || std::any_of(held_.begin(), held_.end(),
                               [node](const HeldContribution& held) { return held.node.Contains(node); });
}

bool Coverage::IsWholeWith(TreeNode node, int num_vnodes) const {
  int leaves = covered_leaves_ + node.count;
  for (const HeldContribution& held : held_) {
    if (node.Contains(held.node)) leaves -= held.node.count;
  }
  return leaves == num_vnodes;
}

int Coverage::Add(HeldContribution contribution) {
  EPS_CHECK(!Covers(contribution.node));
  std::vector<HeldContribution> kept;
  for (HeldContribution& held : held_) {
    // Nodes of one tree are disjoint or nested.
    if (contribution.node.Contains(held.node)) {
      covered_leaves_ -= held.node.count;
    } else {
      kept.push_back(std::move(held));
    }
  }
  const int replaced = static_cast<int>(held_.size() - kept.size());
  covered_leaves_ += contribution.node.count;
  const auto place = std::find_if(kept.begin(), kept.end(), [&](const HeldContribution& held) {
    return held.node.first > contribution.node.first;
  });
  kept.insert(place, std::move(contribution));
  held_ = std::move(kept);
  return replaced;
}

std::vector<HeldContribution> Coverage::Consume() {
  whole_ = true;
  return std::exchange(held_, {});
}

}  // namespace eps::server
