#include "eps_server/step/vnode_shares.h"

#include <vector>

#include "gtest/gtest.h"

namespace eps::server {
namespace {

std::vector<WorkerId> Ids(const std::vector<int>& ids) {
  std::vector<WorkerId> workers;
  for (const int id : ids) workers.push_back(WorkerId(id));
  return workers;
}

TEST(VnodeSharesTest, AloneEachGetsItsRangeByItsId) {
  const auto shares = ShareVnodes({0, 1, 2, 3, 4}, Ids({3, 7}), {});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].worker, WorkerId(3));
  EXPECT_EQ(shares[0].vnodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(shares[1].vnodes, (std::vector<int>{2, 3, 4}));
  EXPECT_FALSE(shares[0].group.has_value());
}

TEST(VnodeSharesTest, OrAsManyAsItIsToHave) {
  const auto shares = ShareVnodes({0, 1, 2, 3, 4}, Ids({3, 7, 9}), {}, {4, 0, 1});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].worker, WorkerId(3));
  EXPECT_EQ(shares[0].vnodes, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(shares[1].worker, WorkerId(9));
  EXPECT_EQ(shares[1].vnodes, (std::vector<int>{4}));
}

TEST(VnodeSharesTest, TheMembersOfAGroupAreNeighboursAndKnowOfEachOther) {
  const std::vector<Groups::Formed> groups = {{.group = 9, .members = Ids({1, 3})},
                                              {.group = 8, .members = Ids({2, 5})}};
  const auto shares = ShareVnodes({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Ids({1, 2, 3, 4, 5}), groups);
  ASSERT_EQ(shares.size(), 5u);
  const std::vector<int> order = {1, 3, 2, 5, 4};
  for (size_t i = 0; i < shares.size(); ++i) {
    EXPECT_EQ(shares[i].worker, WorkerId(order[i]));
    EXPECT_EQ(shares[i].vnodes, (std::vector<int>{static_cast<int>(2 * i), static_cast<int>(2 * i + 1)}));
  }
  EXPECT_EQ(shares[1].group, (GroupVnodes{.group = 9, .rank = 1, .vnodes = {{0, 1}, {2, 3}}}));
  EXPECT_EQ(shares[2].group, (GroupVnodes{.group = 8, .rank = 0, .vnodes = {{4, 5}, {6, 7}}}));
  EXPECT_FALSE(shares[4].group.has_value());
}

TEST(VnodeSharesTest, AGroupWithTooLittleToDoGoesWithout) {
  const auto shares = ShareVnodes({0, 1}, Ids({1, 2, 3}), {{.group = 9, .members = Ids({1, 2, 3})}});
  ASSERT_EQ(shares.size(), 2u);
  for (const VnodeShare& share : shares) {
    EXPECT_EQ(share.vnodes.size(), 1u);
    EXPECT_FALSE(share.group.has_value());
  }
}

}  // namespace
}  // namespace eps::server
