#include "eps_server/step/vnode_ledger.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/schedule/expert_rows.h"
#include "common/schedule/vnode_batch.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
constexpr WorkerId kA(1), kB(2), kC(3), kD(4);

// Vnode v has v + 1 counted tokens and one that is not counted.
VnodeLedger FourVnodes() {
  std::vector<VnodeBatch> batches(4);
  for (int v = 0; v < 4; ++v) {
    batches[v].vnode = v;
    batches[v].labels.assign(v + 1, 7);
    batches[v].labels.push_back(-100);
  }
  return VnodeLedger(StepId(5), batches);
}
VnodeRecord Record(int vnode, double loss_sum) { return {vnode, loss_sum, vnode + 1, true}; }

TEST(VnodeLedgerTest, AStepThatCountsNothingHasNoLoss) {
  VnodeBatch batch;
  batch.vnode = 0;
  batch.labels = {-100, -100};
  VnodeLedger ledger(StepId(5), {batch});
  ledger.Assign(kA, {0});
  EXPECT_OK(ledger.AddRecords(kA, {{0, 0.0, 0, true}}));
  EXPECT_TRUE(std::isnan(ledger.Loss())) << ledger.Loss();
}

TEST(VnodeLedgerTest, TokensThatAreNotCountedAreTokensAndPaddingIsNone) {
  VnodeBatch batch;
  batch.tokens = {1, 2, 3, 0, 0};
  batch.labels = {2, -100, -100, -100, -100};
  batch.num_padding = 2;
  const VnodeLedger ledger(StepId(5), {batch, batch});
  EXPECT_EQ(ledger.num_tokens(), 6);
  EXPECT_EQ(ledger.counted_tokens(), 2);
}

TEST(VnodeLedgerTest, HandsOutAndTakesBackOnlyWhatIsNotDone) {
  VnodeLedger ledger = FourVnodes();
  EXPECT_EQ(ledger.counted_tokens(), 10);
  EXPECT_THAT(ledger.Unassigned(), ElementsAre(0, 1, 2, 3));
  const Assignment assignment = ledger.Assign(kA, {0, 1, 2});
  EXPECT_EQ(assignment.step, StepId(5));
  EXPECT_EQ(assignment.counted_tokens, 10);
  ASSERT_EQ(assignment.vnodes.size(), 3u);
  EXPECT_EQ(assignment.vnodes[2].vnode, 2);
  ledger.Assign(kB, {3});
  EXPECT_THAT(ledger.Unassigned(), IsEmpty());
  EXPECT_TRUE(ledger.IsRunning(kA));

  // Vnode 0 is done; 1 has a record but a contribution is missing; 2 has no record.
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1), Record(1, 1)}));
  EXPECT_EQ(ledger.Lose(kA, {false, true, false, true}), 2);
  EXPECT_THAT(ledger.Unassigned(), ElementsAre(1, 2));
  EXPECT_OK(ledger.AddRecords(kB, {Record(3, 1)}));
  ledger.Assign(kB, {1, 2});
  EXPECT_THAT(ledger.VnodesOf(kB), ElementsAre(1, 2, 3));
  // Whose record of vnode 1 is to come again: it has not read the step's weights to the end.
  EXPECT_TRUE(ledger.IsRunning(kB));
  EXPECT_OK(ledger.AddRecords(kB, {Record(2, 1)}));
  EXPECT_FALSE(ledger.AllRecordsIn());
  EXPECT_OK(ledger.AddRecords(kB, {Record(1, 1)}));
  EXPECT_TRUE(ledger.AllRecordsIn());
}

TEST(VnodeLedgerTest, AVnodeIsRedoneOnceItWasLostAndAnotherHasGivenItsRecord) {
  VnodeLedger ledger = FourVnodes();
  ledger.Assign(kA, {0, 1, 2, 3});
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1)}));
  EXPECT_EQ(ledger.ShareOfRecords(), 0.25);
  EXPECT_EQ(ledger.Lose(kA, {}), 3);
  ledger.Assign(kB, {1, 2, 3});
  EXPECT_EQ(ledger.TakeRedone(), 0);
  EXPECT_OK(ledger.AddRecords(kB, {Record(1, 1), Record(2, 1)}));
  EXPECT_EQ(ledger.TakeRedone(), 2);
  EXPECT_OK(ledger.AddRecords(kB, {Record(1, 1), Record(3, 1)}));
  EXPECT_EQ(ledger.TakeRedone(), 1);
  EXPECT_EQ(ledger.TakeRedone(), 0);
}

// What a member computed lies in parts with all of them: one that is lost takes some of everybody's along.
TEST(VnodeLedgerTest, AGroupThatIsOverLosesTheVnodesOfAllItsMembers) {
  VnodeLedger ledger = FourVnodes();
  EXPECT_TRUE(ledger.IsFresh());
  const Assignment assignment = ledger.Assign(kA, {0, 1}, GroupVnodes{.group = 9, .rank = 0, .vnodes = {{0, 1}, {2}}});
  EXPECT_EQ(assignment.group->group, 9u);
  EXPECT_FALSE(ledger.IsFresh());
  ledger.Assign(kB, {2}, GroupVnodes{.group = 9, .rank = 1, .vnodes = {{0, 1}, {2}}});
  ledger.Assign(kC, {3});
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1), Record(1, 1)}));
  EXPECT_EQ(ledger.LoseGroup(8, {true, true, true, true}), 0);
  EXPECT_EQ(ledger.LoseGroup(9, {true, false, true, true}), 2);  // vnode 1 is all in
  EXPECT_THAT(ledger.Unassigned(), ElementsAre(0, 2));
  EXPECT_EQ(ledger.LoseGroup(9, {true, true, true, true}), 0) << "once";
  EXPECT_FALSE(ledger.Holds(kB));
  EXPECT_TRUE(ledger.TakesPart(kB));
  EXPECT_TRUE(ledger.TakesPart(kC));
  EXPECT_FALSE(ledger.TakesPart(kD));
  EXPECT_OK(ledger.AddRecords(kC, {Record(3, 1)}));
  ledger.Assign(kA, {0, 2});
  EXPECT_OK(ledger.AddRecords(kB, {Record(2, 1)})) << "it had computed it before it learned of the end";
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1)}));
  EXPECT_FALSE(ledger.AllRecordsIn()) << "it is computed again";
  EXPECT_OK(ledger.AddRecords(kA, {Record(2, 1)}));
  EXPECT_TRUE(ledger.AllRecordsIn());
  EXPECT_THAT(ledger.AddRecords(kB, {Record(1, 1)}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(VnodeLedgerTest, WhatAGroupsMemberHadComputedCountsUntilSomebodyIsGivenIt) {
  VnodeLedger ledger = FourVnodes();
  ledger.Assign(kA, {0, 1, 2, 3}, GroupVnodes{.group = 9, .rank = 0, .vnodes = {{0, 1, 2, 3}}});
  EXPECT_EQ(ledger.LoseGroup(9, {true, true, true, true}), 4);
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1), Record(1, 1), Record(2, 1), Record(3, 1)}));
  EXPECT_TRUE(ledger.AllRecordsIn());
  ledger.Assign(kB, {3});
  EXPECT_FALSE(ledger.AllRecordsIn());
}

TEST(VnodeLedgerTest, SaysWhoHasNotFinishedWhat) {
  VnodeLedger ledger = FourVnodes();
  ledger.Assign(kA, {0, 1});
  ledger.Assign(kB, {2});
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1), Record(1, 1)}));
  // Of vnode 1 a contribution is missing; 2 has no record; 3 is nobody's.
  EXPECT_THAT(ledger.Unfinished({false, true, false, false}),
              ElementsAre(Pair(WorkerId(), ElementsAre(3)), Pair(kA, ElementsAre(1)), Pair(kB, ElementsAre(2))));
  EXPECT_THAT(ledger.HoldersOf({true, false, false, true}),
              ElementsAre(Pair(WorkerId(), ElementsAre(3)), Pair(kA, ElementsAre(0))));
}

TEST(VnodeLedgerTest, CountsEachRecordOnceAndSumsInTreeOrder) {
  VnodeLedger ledger = FourVnodes();
  ledger.Assign(kA, {0, 1, 2, 3});
  // (1e16 + 1) + (-1e16 + 1): from left to right it would be another number.
  EXPECT_OK(ledger.AddRecords(kA, {Record(3, 1), Record(0, 1e16)}));
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 12345)}));
  EXPECT_FALSE(ledger.AllRecordsIn());
  EXPECT_OK(ledger.AddRecords(kA, {Record(1, 1), Record(2, -1e16)}));
  ASSERT_TRUE(ledger.AllRecordsIn());
  EXPECT_EQ(ledger.Loss(), ((1e16 + 1) + (-1e16 + 1)) / 10);
  EXPECT_FALSE(ledger.IsRunning(kA));
}

TEST(VnodeLedgerTest, BadRecordsNameTheFieldAndCountNothing) {
  VnodeLedger ledger = FourVnodes();
  ledger.Assign(kA, {0, 1});
  ledger.Assign(kB, {2, 3});
  VnodeRecord tokens = Record(1, 1);
  tokens.counted_tokens = 9;
  EXPECT_THAT(ledger.AddRecords(kA, {Record(0, 1), Record(4, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.records.vnode: 4"));
  EXPECT_THAT(ledger.AddRecords(kA, {Record(0, 1), Record(-1, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.records.vnode: -1"));
  EXPECT_THAT(ledger.AddRecords(kA, {Record(0, 1), Record(2, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, "not assigned to worker 1"));
  EXPECT_THAT(ledger.AddRecords(kA, {Record(0, 1), tokens}),
              StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.records.counted_tokens: 9, vnode 1 has 2"));
  EXPECT_OK(ledger.AddRecords(kB, {Record(2, 1), Record(3, 1)}));
  EXPECT_OK(ledger.AddRecords(kA, {Record(1, 1)}));
  EXPECT_FALSE(ledger.AllRecordsIn());  // vnode 0 was never counted
}

TEST(VnodeLedgerTest, RowsOfExpertsAreAddedOnceAndCheckedBefore) {
  std::vector<VnodeBatch> batches(2);
  for (int v = 0; v < 2; ++v) {
    batches[v].vnode = v;
    batches[v].tokens = batches[v].labels = {1, 2, 3};
  }
  const auto record = [](int vnode, ExpertRows rows) {
    return VnodeRecord{.vnode = vnode, .loss_sum = 1, .counted_tokens = 3, .expert_rows = std::move(rows)};
  };
  VnodeLedger ledger(StepId(5), batches, {.blocks = 2, .experts = 2, .per_token = 1});
  ledger.Assign(kA, {0, 1});
  EXPECT_THAT(ledger.AddRecords(kA, {record(0, {1, 2, 3, 0}), record(1, {1, 2, 3, 1})}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "pass_done.records.expert_rows of vnode 1: block 1 has 4 rows, want 3"));
  EXPECT_THAT(
      ledger.AddRecords(kA, {record(0, {})}),
      StatusIs(absl::StatusCode::kInvalidArgument, "pass_done.records.expert_rows of vnode 0: 0 numbers, want 4"));
  // Of vnode 0 first one worker, which is lost with its gradients, and then another.
  EXPECT_OK(ledger.AddRecords(kA, {record(0, {1, 2, 3, 0})}));
  EXPECT_EQ(ledger.Lose(kA, {true, true}), 2);
  ledger.Assign(kB, {0, 1});
  EXPECT_OK(ledger.AddRecords(kB, {record(0, {1, 2, 3, 0}), record(1, {3, 0, 0, 3})}));
  EXPECT_OK(ledger.AddRecords(kB, {record(1, {3, 0, 0, 3})}));
  EXPECT_THAT(ledger.TotalExpertRows(), ElementsAre(4, 2, 3, 3));
}

TEST(VnodeLedgerTest, FindsALossThatIsNotFinite) {
  VnodeLedger ledger = FourVnodes();
  ledger.Assign(kA, {0, 1, 2, 3});
  EXPECT_OK(ledger.AddRecords(kA, {Record(0, 1)}));
  EXPECT_EQ(ledger.NonfiniteVnode(), std::nullopt);
  EXPECT_OK(ledger.AddRecords(kA, {Record(2, std::numeric_limits<double>::quiet_NaN())}));
  EXPECT_EQ(ledger.NonfiniteVnode(), 2);
}

}  // namespace
}  // namespace eps::server
