#include "common/schedule/pushed_nodes.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(PushedNodesTest, TwoSixteenBitLeavesGoAsLeavesAndTwoOfFp32AsTheirSum) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5};  // the tree's nodes of at most four: {0..3}, {4, 5}
  EXPECT_EQ(PushedNodes(all, 6, 4, Dtype::kBf16), (std::vector<TreeNode>{{0, 4}, {4, 1}, {5, 1}}));
  EXPECT_EQ(PushedNodes(all, 6, 4, Dtype::kF32), (std::vector<TreeNode>{{0, 4}, {4, 2}}));
}

TEST(PushedNodesTest, NoLargerThanTheSlotsSum) {
  EXPECT_EQ(PushedNodes({0, 1, 2}, 3, 1, Dtype::kF32), (std::vector<TreeNode>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(PushedNodesTest, NeverMoreBytesThanTheLeaves) {
  for (const Dtype gradients : {Dtype::kBf16, Dtype::kF32}) {
    for (int num_vnodes = 1; num_vnodes <= 40; ++num_vnodes) {
      std::vector<int> all(num_vnodes);
      std::iota(all.begin(), all.end(), 0);
      for (int max_leaves = 1; max_leaves <= 64; max_leaves *= 2) {
        int next = 0;
        for (const TreeNode& node : PushedNodes(all, num_vnodes, max_leaves, gradients)) {
          EXPECT_EQ(node.first, next);
          next = node.end();
          EXPECT_TRUE(IsTreeNode(node, num_vnodes));
          EXPECT_LE(SizeOf(PushedDtype(node, gradients)), node.count * SizeOf(gradients));
          EXPECT_TRUE(node.is_leaf() || SizeOf(Dtype::kF32) < node.count * SizeOf(gradients));
        }
        EXPECT_EQ(next, num_vnodes);
      }
    }
  }
}

}  // namespace
}  // namespace eps
