#include "common/schedule/reduction_tree.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Nodes = std::vector<TreeNode>;

// The sum as the definition says it, written as text: "((0+1)+2)".
std::string Reference(int first, int count) {
  if (count == 1) return std::to_string(first);
  int left = 1;
  while (left * 2 < count) left *= 2;
  return "(" + Reference(first, left) + "+" + Reference(first + left, count - left) + ")";
}

std::string SumText(const std::vector<SumOp>& program, const Nodes& nodes) {
  std::vector<std::string> stack;
  for (const SumOp& op : program) {
    if (op.kind == SumOp::Kind::kLoad) {
      stack.push_back(Reference(nodes[op.operand].first, nodes[op.operand].count));
    } else {
      const std::string right = stack.back();
      stack.pop_back();
      const std::string left = stack.back();
      stack.pop_back();
      stack.push_back("(" + left + "+" + right + ")");
    }
  }
  return stack.size() == 1 ? stack[0] : "stack of " + std::to_string(stack.size());
}

Nodes AllNodes(TreeNode node) {
  Nodes nodes{node};
  if (node.is_leaf()) return nodes;
  const int left = LeftLeaves(node.count);
  for (const TreeNode child : {TreeNode{node.first, left}, TreeNode{node.first + left, node.count - left}}) {
    for (const TreeNode below : AllNodes(child)) nodes.push_back(below);
  }
  return nodes;
}

// Random distinct vnodes, rising.
std::vector<int> RandomHeld(int num_vnodes, std::mt19937& random) {
  std::vector<int> held;
  for (int v = 0; v < num_vnodes; ++v) {
    if (random() % 3 != 0) held.push_back(v);
  }
  return held;
}

TEST(ReductionTreeTest, ANodeSplitsAtTheLargestPowerOfTwoBelowItsLeaves) {
  EXPECT_EQ(LeftLeaves(2), 1);
  EXPECT_EQ(LeftLeaves(3), 2);
  EXPECT_EQ(LeftLeaves(4), 2);
  EXPECT_EQ(LeftLeaves(5), 4);
  EXPECT_EQ(LeftLeaves(8), 4);
  EXPECT_EQ(LeftLeaves(9), 8);
  EXPECT_EQ(LeftLeaves(std::numeric_limits<int>::max()), 1 << 30);
}

TEST(ReductionTreeTest, ExactlyTheNodesOfTheTreeAreNodes) {
  for (int v = 1; v <= 20; ++v) {
    const Nodes all = AllNodes({0, v});
    for (int first = -1; first <= v + 1; ++first) {
      for (int count = -1; count <= v + 1; ++count) {
        const bool want = std::find(all.begin(), all.end(), TreeNode{first, count}) != all.end();
        EXPECT_EQ(IsTreeNode({first, count}, v), want) << first << "+" << count << " of " << v;
      }
    }
  }
}

TEST(ReductionTreeTest, NumbersFromOutsideThatOverflowAreNoNodes) {
  const int max = std::numeric_limits<int>::max();
  EXPECT_FALSE(IsTreeNode({max, max}, 4));
  EXPECT_FALSE(IsTreeNode({1, max}, max));
  EXPECT_FALSE(IsTreeNode({std::numeric_limits<int>::min(), 1}, 4));
  EXPECT_FALSE(IsTreeNode({0, 0}, 0));
  EXPECT_TRUE(IsTreeNode({0, max}, max));
}

TEST(ReductionTreeTest, AWorkerThatHoldsAllHoldsTheRoot) {
  for (int v = 1; v <= 9; ++v) {
    std::vector<int> held(v);
    for (int i = 0; i < v; ++i) held[i] = i;
    EXPECT_EQ(LargestSubtrees(held, v, v), (Nodes{{0, v}}));
  }
}

TEST(ReductionTreeTest, NeighboursThatAreNoSiblingsStayApart) {
  EXPECT_EQ(LargestSubtrees({1, 2}, 4, 4), (Nodes{{1, 1}, {2, 1}}));
  EXPECT_EQ(LargestSubtrees({0, 1}, 4, 4), (Nodes{{0, 2}}));
  EXPECT_EQ(LargestSubtrees({1, 2, 3}, 4, 4), (Nodes{{1, 1}, {2, 2}}));
  EXPECT_EQ(LargestSubtrees({4, 5, 6}, 7, 7), (Nodes{{4, 3}}));
  EXPECT_EQ(LargestSubtrees({}, 4, 4), Nodes{});
}

TEST(ReductionTreeTest, SubtreesAreNoLargerThanAllowed) {
  EXPECT_EQ(LargestSubtrees({0, 1, 2, 3}, 4, 1), (Nodes{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
  EXPECT_EQ(LargestSubtrees({0, 1, 2, 3}, 4, 3), (Nodes{{0, 2}, {2, 2}}));
  EXPECT_EQ(LargestSubtrees({0, 1, 2}, 3, 2), (Nodes{{0, 2}, {2, 1}}));
}

TEST(ReductionTreeTest, SubtreesCoverExactlyWhatIsHeldAndNoTwoSiblingsCouldBeJoined) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int v = 1 + static_cast<int>(random() % 40);
    const int max_leaves = 1 + static_cast<int>(random() % v);
    const std::vector<int> held = RandomHeld(v, random);
    const Nodes nodes = LargestSubtrees(held, v, max_leaves);
    std::vector<int> covered;
    for (const TreeNode node : nodes) {
      EXPECT_TRUE(IsTreeNode(node, v)) << DebugString(node) << " of " << v;
      EXPECT_LE(node.count, max_leaves);
      for (int leaf = node.first; leaf < node.end(); ++leaf) covered.push_back(leaf);
    }
    EXPECT_EQ(covered, held);
    for (size_t i = 1; i < nodes.size(); ++i) {
      const TreeNode joined{nodes[i - 1].first, nodes[i - 1].count + nodes[i].count};
      EXPECT_FALSE(nodes[i - 1].end() == nodes[i].first && joined.count <= max_leaves && IsTreeNode(joined, v) &&
                   LeftLeaves(joined.count) == nodes[i - 1].count);
    }
  }
}

TEST(ReductionTreeTest, TheSumIsTheSameHoweverTheLeavesWereDealtOut) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const int v = 1 + static_cast<int>(random() % 40);
    std::vector<int> mine = RandomHeld(v, random), theirs;
    for (int leaf = 0; leaf < v; ++leaf) {
      if (!std::binary_search(mine.begin(), mine.end(), leaf)) theirs.push_back(leaf);
    }
    Nodes nodes = LargestSubtrees(mine, v, 1 + static_cast<int>(random() % v));
    for (const TreeNode node : LargestSubtrees(theirs, v, v)) nodes.push_back(node);
    std::sort(nodes.begin(), nodes.end());
    EXPECT_EQ(SumText(SumProgram(nodes, v), nodes), Reference(0, v));
  }
}

TEST(ReductionTreeTest, AProgramLoadsEachNodeOnceInOrder) {
  const Nodes nodes{{0, 2}, {2, 1}, {3, 1}, {4, 1}};
  int next = 0, adds = 0;
  for (const SumOp& op : SumProgram(nodes, 5)) {
    if (op.kind == SumOp::Kind::kLoad) {
      EXPECT_EQ(op.operand, next++);
    } else {
      ++adds;
    }
  }
  EXPECT_EQ(next, 4);
  EXPECT_EQ(adds, 3);
}

TEST(ReductionTreeTest, PartialSumsAreThePeakOfTheStackOfAProgramOverLeaves) {
  for (int v = 1; v <= 64; ++v) {
    Nodes leaves;
    for (int leaf = 0; leaf < v; ++leaf) leaves.push_back({leaf, 1});
    int depth = 0, peak = 0;
    for (const SumOp& op : SumProgram(leaves, v)) {
      depth += op.kind == SumOp::Kind::kLoad ? 1 : -1;
      peak = std::max(peak, depth);
    }
    EXPECT_EQ(PartialSums(v), peak) << v;
  }
}

TEST(ReductionTreeTest, PartialSumsGrowWithTheLogarithmOfTheLeaves) {
  EXPECT_EQ(PartialSums(1), 1);
  EXPECT_EQ(PartialSums(2), 2);
  EXPECT_EQ(PartialSums(3), 2);
  EXPECT_EQ(PartialSums(4), 3);
  EXPECT_EQ(PartialSums(1024), 11);
}

TEST(ReductionTreeTest, NodesAreShownAsRanges) {
  EXPECT_EQ(DebugString(TreeNode{0, 4}), "{0..3}");
  EXPECT_EQ(DebugString(TreeNode{5, 1}), "{5}");
}

TEST(ReductionTreeDeathTest, NodesThatDoNotCoverTheTreeAreABugOfTheCaller) {
  EXPECT_DEATH(SumProgram({TreeNode{0, 2}}, 4), "check failed");
  EXPECT_DEATH(SumProgram({TreeNode{0, 2}, TreeNode{1, 1}}, 2), "check failed");
  EXPECT_DEATH(LargestSubtrees({2, 1}, 4, 4), "check failed");
  EXPECT_DEATH(LargestSubtrees({4}, 4, 4), "check failed");
}

}  // namespace
}  // namespace eps
