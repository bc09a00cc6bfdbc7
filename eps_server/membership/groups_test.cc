#include "eps_server/membership/groups.h"

#include <string>
#include <utility>
#include <vector>

#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using absl::StatusCode;
using Kind = GroupOrder::Kind;

class GroupsTest : public ::testing::Test {
 protected:
  static Groups::Candidate Of(int worker, std::string kind = "nccl") { return {WorkerId(worker), std::move(kind)}; }
  // "found 1 as 0 of 3", "join 2 as 1 of 3 with T", "end 3: why".
  static std::vector<std::string> Texts(const std::vector<GroupOrder>& orders) {
    std::vector<std::string> texts;
    for (const GroupOrder& order : orders) {
      const std::string who = std::to_string(order.worker.value());
      const std::string place = " as " + std::to_string(order.rank) + " of " + std::to_string(order.size);
      if (order.kind == Kind::kFound) texts.push_back("found " + who + place);
      if (order.kind == Kind::kJoin) texts.push_back("join " + who + place + " with " + order.token);
      if (order.kind == Kind::kEnd) texts.push_back("end " + who + ": " + order.reason);
    }
    return texts;
  }
  // Forms a group of these workers, all the way.
  uint64_t Form(const std::vector<Groups::Candidate>& workers) {
    EXPECT_EQ(groups_.Arrange(workers, now_).size(), 1u);
    std::vector<GroupOrder> orders;
    EXPECT_OK(groups_.Founded(workers.front().worker, last_id_, "T", orders));
    EXPECT_EQ(orders.size(), workers.size() - 1);
    for (const Groups::Candidate& worker : workers) groups_.Joined(worker.worker, last_id_);
    EXPECT_FALSE(groups_.IsForming());
    return last_id_;
  }

  uint64_t last_id_ = 100;
  absl::Duration now_ = absl::Seconds(1);
  Groups groups_{[this] { return ++last_id_; }, 4};
};

TEST_F(GroupsTest, TheLowestFoundsAndTheOthersJoinWithItsToken) {
  EXPECT_EQ(Texts(groups_.Arrange({Of(3), Of(5), Of(8)}, now_)), std::vector<std::string>{"found 3 as 0 of 3"});
  EXPECT_TRUE(groups_.IsForming());
  std::vector<GroupOrder> orders;
  ASSERT_OK(groups_.Founded(WorkerId(3), last_id_, "T", orders));
  EXPECT_EQ(Texts(orders), (std::vector<std::string>{"join 5 as 1 of 3 with T", "join 8 as 2 of 3 with T"}));
  for (const int worker : {3, 8}) EXPECT_FALSE(groups_.Joined(WorkerId(worker), last_id_));
  EXPECT_TRUE(groups_.formed().empty());
  EXPECT_TRUE(groups_.Joined(WorkerId(5), last_id_));
  EXPECT_FALSE(groups_.Joined(WorkerId(5), last_id_)) << "told twice";
  EXPECT_FALSE(groups_.IsForming());
  ASSERT_EQ(groups_.formed().size(), 1u);
  EXPECT_EQ(groups_.formed()[0].members, (std::vector<WorkerId>{WorkerId(3), WorkerId(5), WorkerId(8)}));
  EXPECT_TRUE(groups_.Arrange({Of(3), Of(5), Of(8)}, now_).empty()) << "nothing changes";
}

TEST_F(GroupsTest, OnlyThoseOfOneKindComeTogether) {
  const auto orders = groups_.Arrange({Of(1, "a"), Of(2, "b"), Of(3, "a"), Of(4, ""), Of(5, ""), Of(6, "c")}, now_);
  EXPECT_EQ(Texts(orders), std::vector<std::string>{"found 1 as 0 of 2"});
}

TEST_F(GroupsTest, MoreThanAGroupMayHaveAreSeveral) {
  const std::vector<Groups::Candidate> nine = {Of(1), Of(2), Of(3), Of(4), Of(5), Of(6), Of(7), Of(8), Of(9)};
  EXPECT_EQ(Texts(groups_.Arrange(nine, now_)), (std::vector<std::string>{"found 1 as 0 of 4", "found 5 as 0 of 4"}))
      << "one is left over";
  EXPECT_TRUE(groups_.Arrange(nine, now_).empty());
  Groups none([this] { return ++last_id_; }, 1);
  EXPECT_TRUE(none.Arrange(nine, now_).empty());
}

TEST_F(GroupsTest, ALostMemberEndsItAndTheOthersFormANewOne) {
  const uint64_t id = Form({Of(1), Of(2), Of(3)});
  std::vector<uint64_t> lost;
  EXPECT_EQ(Texts(groups_.Lose(WorkerId(2), lost)),
            (std::vector<std::string>{"end 1: worker 2 is gone", "end 3: worker 2 is gone"}));
  EXPECT_EQ(lost, std::vector<uint64_t>{id});
  EXPECT_TRUE(groups_.formed().empty());
  EXPECT_EQ(Texts(groups_.Arrange({Of(1), Of(3)}, now_)), std::vector<std::string>{"found 1 as 0 of 2"});
}

TEST_F(GroupsTest, OneWhoComesMakesItANewGroup) {
  Form({Of(1), Of(2)});
  EXPECT_EQ(Texts(groups_.Arrange({Of(1), Of(2), Of(7)}, now_)),
            (std::vector<std::string>{"end 1: its members change", "end 2: its members change", "found 1 as 0 of 3"}));
}

TEST_F(GroupsTest, WhatFailedIsNotTriedAgainWithTheSameMembers) {
  const uint64_t id = Form({Of(1), Of(2)});
  std::vector<GroupOrder> orders;
  EXPECT_TRUE(groups_.Failed(WorkerId(2), id, "a broken link", orders));
  EXPECT_FALSE(groups_.Failed(WorkerId(1), id, "it too", orders)) << "it is over already";
  EXPECT_EQ(Texts(orders), std::vector<std::string>{"end 1: worker 2: a broken link"});
  EXPECT_TRUE(groups_.Arrange({Of(1), Of(2)}, now_).empty());
  EXPECT_EQ(groups_.Arrange({Of(1), Of(2), Of(3)}, now_).size(), 1u);
}

TEST_F(GroupsTest, OneWhoCannotJoinIsLeftOutAndTheOthersGoOnTogether) {
  groups_.Arrange({Of(1), Of(2), Of(3)}, now_);
  std::vector<GroupOrder> orders;
  ASSERT_OK(groups_.Founded(WorkerId(1), last_id_, "T", orders));
  EXPECT_TRUE(groups_.Failed(WorkerId(3), last_id_, "no such socket", orders));
  EXPECT_EQ(Texts(groups_.Arrange({Of(1), Of(2), Of(3)}, now_)), std::vector<std::string>{"found 1 as 0 of 2"});
  // And one who says nothing.
  ASSERT_OK(groups_.Founded(WorkerId(1), last_id_, "T", orders));
  groups_.Expire(now_ + absl::Seconds(60));
  EXPECT_EQ(Texts(groups_.Arrange({Of(1), Of(2), Of(3), Of(4)}, now_)), std::vector<std::string>{"found 1 as 0 of 2"});
}

TEST_F(GroupsTest, OneWhoCouldNotJoinForAnothersLossIsNotLeftOut) {
  groups_.Arrange({Of(1), Of(2), Of(3)}, now_);
  std::vector<GroupOrder> orders;
  ASSERT_OK(groups_.Founded(WorkerId(1), last_id_, "T", orders));
  // It sees that the founder is gone before the daemon does.
  EXPECT_TRUE(groups_.Failed(WorkerId(3), last_id_, "the founder is gone", orders));
  std::vector<uint64_t> lost;
  groups_.Lose(WorkerId(1), lost);
  EXPECT_EQ(Texts(groups_.Arrange({Of(2), Of(3)}, now_)), std::vector<std::string>{"found 2 as 0 of 2"});
}

TEST_F(GroupsTest, OneThatIsNotJoinedInTimeIsOver) {
  groups_.Arrange({Of(1), Of(2)}, now_);
  EXPECT_TRUE(groups_.Expire(now_ + absl::Seconds(59)).empty());
  EXPECT_EQ(Texts(groups_.Expire(now_ + absl::Seconds(60))),
            (std::vector<std::string>{"end 1: not all have joined within 1m", "end 2: not all have joined within 1m"}));
  EXPECT_FALSE(groups_.IsForming());
  EXPECT_TRUE(groups_.Arrange({Of(1), Of(2)}, now_).empty());
}

TEST_F(GroupsTest, WordsOfStrangersAndOfGroupsThatAreOverChangeNothing) {
  const uint64_t id = Form({Of(1), Of(2)});
  std::vector<GroupOrder> orders;
  EXPECT_THAT(groups_.Founded(WorkerId(2), id, "T", orders),
              StatusIs(StatusCode::kInvalidArgument, "group_founded.group: worker 2"));
  EXPECT_THAT(groups_.Founded(WorkerId(1), id, std::string(kMaxGroupTokenBytes + 1, 'x'), orders),
              StatusIs(StatusCode::kInvalidArgument, "group_founded.token: 1025 bytes"));
  EXPECT_OK(groups_.Founded(WorkerId(9), 77, "T", orders));
  groups_.Joined(WorkerId(9), id);
  EXPECT_FALSE(groups_.Failed(WorkerId(9), id, "I am no member", orders));
  EXPECT_THAT(groups_.Founded(WorkerId(1), id, "another", orders),
              StatusIs(StatusCode::kInvalidArgument, "group_founded.group: it was founded before"));
  EXPECT_TRUE(orders.empty());
  EXPECT_EQ(groups_.formed().size(), 1u);
}

}  // namespace
}  // namespace eps::server
