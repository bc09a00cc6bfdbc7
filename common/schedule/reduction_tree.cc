#include "common/schedule/reduction_tree.h"

#include <bit>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

TreeNode LeftChild(TreeNode node) { return {node.first, LeftLeaves(node.count)}; }
TreeNode RightChild(TreeNode node) {
  const int left = LeftLeaves(node.count);
  return {node.first + left, node.count - left};
}

// Cuts `held` (vnodes of `node`, all held or not) into subtrees and appends them.
void Cover(TreeNode node, absl::Span<const int> held, int max_leaves, std::vector<TreeNode>& out) {
  if (held.empty()) return;
  if (static_cast<int>(held.size()) == node.count && node.count <= max_leaves) {
    out.push_back(node);
    return;
  }
  const TreeNode left = LeftChild(node);
  size_t split = 0;
  while (split < held.size() && held[split] < left.end()) ++split;
  Cover(left, held.subspan(0, split), max_leaves, out);
  Cover(RightChild(node), held.subspan(split), max_leaves, out);
}

// Appends the program that leaves the sum of `node` on the stack; `next` is the first node not yet
// loaded.
void Sum(TreeNode node, absl::Span<const TreeNode> nodes, size_t& next, std::vector<SumOp>& program) {
  EPS_CHECK(next < nodes.size());
  if (nodes[next] == node) {
    program.push_back({SumOp::Kind::kLoad, static_cast<int>(next++)});
    return;
  }
  EPS_CHECK(node.count >= 2);  // else the nodes leave a gap, overlap, or are no nodes of this tree
  Sum(LeftChild(node), nodes, next, program);
  Sum(RightChild(node), nodes, next, program);
  program.push_back({SumOp::Kind::kAdd, 0});
}

}  // namespace

int LeftLeaves(int count) {
  EPS_CHECK(count >= 2);
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(count) - 1));
}

bool IsTreeNode(TreeNode node, int num_vnodes) {
  if (num_vnodes < 1 || node.first < 0 || node.count < 1 || node.count > num_vnodes ||
      node.first > num_vnodes - node.count) {
    return false;
  }
  TreeNode at{0, num_vnodes};
  while (at != node) {
    if (at.is_leaf()) return false;
    const TreeNode left = LeftChild(at);
    at = node.first < left.end() ? left : RightChild(at);
    if (!at.Contains(node)) return false;
  }
  return true;
}

std::vector<TreeNode> LargestSubtrees(absl::Span<const int> held, int num_vnodes, int max_leaves) {
  EPS_CHECK(num_vnodes >= 1 && max_leaves >= 1);
  for (size_t i = 0; i < held.size(); ++i) {
    EPS_CHECK(held[i] >= (i == 0 ? 0 : held[i - 1] + 1) && held[i] < num_vnodes);
  }
  std::vector<TreeNode> nodes;
  Cover({0, num_vnodes}, held, max_leaves, nodes);
  return nodes;
}

int PartialSums(int count) {
  EPS_CHECK(count >= 1);
  if (count == 1) return 1;
  // The left child's sum stays on the stack while the right child is made.
  const int left = LeftLeaves(count);
  const int while_left = PartialSums(left);
  const int while_right = 1 + PartialSums(count - left);
  return while_left > while_right ? while_left : while_right;
}

std::vector<SumOp> SumProgram(absl::Span<const TreeNode> nodes, int num_vnodes) {
  EPS_CHECK(num_vnodes >= 1);
  std::vector<SumOp> program;
  size_t next = 0;
  Sum({0, num_vnodes}, nodes, next, program);
  EPS_CHECK(next == nodes.size());
  return program;
}

std::string DebugString(TreeNode node) {
  if (node.is_leaf()) return absl::StrCat("{", node.first, "}");
  return absl::StrCat("{", node.first, "..", node.end() - 1, "}");
}

}  // namespace eps
