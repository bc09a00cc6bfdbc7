#include "common/schedule/pushed_nodes.h"

namespace eps {

std::vector<TreeNode> PushedNodes(absl::Span<const int> vnodes, int num_vnodes, int max_leaves, Dtype gradients) {
  std::vector<TreeNode> nodes;
  for (const TreeNode& node : LargestSubtrees(vnodes, num_vnodes, max_leaves)) {
    if (node.count >= LeastSummedLeaves(gradients)) {
      nodes.push_back(node);
    } else {
      for (int leaf = node.first; leaf < node.end(); ++leaf) nodes.push_back({leaf, 1});
    }
  }
  return nodes;
}

}  // namespace eps
