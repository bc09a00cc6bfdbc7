#ifndef EPS_COMMON_SCHEDULE_REDUCTION_TREE_H_
#define EPS_COMMON_SCHEDULE_REDUCTION_TREE_H_

#include <compare>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace eps {

// A node of the fixed reduction tree over V virtual nodes: the leaves [first, first + count).
//
// The tree: a node of n leaves splits at the largest power of two below n; a node of one leaf is a leaf.
// Sums are taken left + right at every node, so the order, and with it every bit of the sum, is a
// function of V alone: not of workers, assignment or arrival.
struct TreeNode {
  int first = 0;
  int count = 1;

  bool is_leaf() const { return count == 1; }
  int end() const { return first + count; }
  bool Contains(TreeNode other) const { return first <= other.first && other.end() <= end(); }
  friend auto operator<=>(const TreeNode&, const TreeNode&) = default;
};

// Leaves of the left child of a node of `count` >= 2 leaves.
int LeftLeaves(int count);

// True if `node` is a node of the tree over `num_vnodes` leaves (not just any range).
bool IsTreeNode(TreeNode node, int num_vnodes);

// The fewest nodes of the tree, each of at most `max_leaves` leaves, that cover exactly `held`.
//
// held: distinct vnodes in [0, num_vnodes), rising. Result: rising by `first`.
std::vector<TreeNode> LargestSubtrees(absl::Span<const int> held, int num_vnodes, int max_leaves);

// How many partial sums are alive at once when the leaves of a node of `count` leaves arrive in order
// and are added as soon as both children are there, the arriving leaf included: 1 for one leaf.
int PartialSums(int count);

// One step of a postfix program that sums disjoint nodes into their root.
struct SumOp {
  enum class Kind { kLoad, kAdd } kind;
  int operand = 0;  // kLoad: index into the nodes given
};

// The order in which `nodes` (disjoint, rising, covering the whole tree) are summed: a postfix program.
// kLoad pushes a node's values, kAdd pops right then left and pushes left + right.
std::vector<SumOp> SumProgram(absl::Span<const TreeNode> nodes, int num_vnodes);

// "{0..3}" or "{5}".
std::string DebugString(TreeNode node);

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_REDUCTION_TREE_H_
