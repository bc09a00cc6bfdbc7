#include "eps_server/aggregation/coverage.h"

#include <utility>
#include <vector>

#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

int Add(Coverage& coverage, TreeNode node) {
  HeldContribution contribution;
  contribution.node = node;
  return coverage.Add(std::move(contribution));
}

TEST(CoverageTest, AncestorReplacesDescendantsAndCoversThem) {
  Coverage coverage;
  EXPECT_EQ(Add(coverage, {0, 1}), 0);
  EXPECT_EQ(Add(coverage, {2, 2}), 0);
  EXPECT_EQ(Add(coverage, {4, 1}), 0);
  EXPECT_TRUE(coverage.Covers(3));
  EXPECT_FALSE(coverage.Covers(1));
  EXPECT_FALSE(coverage.Covers(TreeNode{0, 2}));
  EXPECT_EQ(Add(coverage, {0, 4}), 2);
  EXPECT_TRUE(coverage.Covers(TreeNode{0, 2}));
  EXPECT_TRUE(coverage.IsWhole(5));
  EXPECT_FALSE(coverage.IsWhole(6));
}

TEST(CoverageTest, WouldBeWholeWithWhatIsMissing) {
  Coverage coverage;
  Add(coverage, {0, 1});
  Add(coverage, {2, 2});
  EXPECT_TRUE(coverage.IsWholeWith({1, 1}, 4));
  EXPECT_TRUE(coverage.IsWholeWith({0, 2}, 4));
  EXPECT_TRUE(coverage.IsWholeWith({0, 4}, 4));
  EXPECT_FALSE(coverage.IsWholeWith({1, 1}, 5));
}

TEST(CoverageTest, ConsumedComesOutInOrderAndStaysWhole) {
  Coverage coverage;
  for (const TreeNode node : {TreeNode{2, 1}, TreeNode{0, 2}, TreeNode{3, 1}}) Add(coverage, node);
  ASSERT_TRUE(coverage.IsWhole(4));
  const std::vector<HeldContribution> held = coverage.Consume();
  ASSERT_EQ(held.size(), 3u);
  EXPECT_EQ(held[0].node, (TreeNode{0, 2}));
  EXPECT_EQ(held[1].node, (TreeNode{2, 1}));
  EXPECT_EQ(held[2].node, (TreeNode{3, 1}));
  EXPECT_TRUE(coverage.IsWhole(4));
  EXPECT_TRUE(coverage.Covers(TreeNode{0, 4}));
}

}  // namespace
}  // namespace eps::server
