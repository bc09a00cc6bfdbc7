#include "eps_server/aggregation/step_coverage.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/aggregation/contribution_key.h"
#include "eps_server/aggregation/coverage.h"
#include "eps_server/aggregation/small_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr LayerId kEmbedding(0), kLayer0(1), kLayer1(2), kHead(3);

class StepCoverageTest : public ::testing::Test {
 protected:
  ContributionKey Key(BlobId blob, TreeNode node, int use = 0) const {
    return {StepId(0), blob, use, node, model_.blob(blob).all_chunks(), Dtype::kF32, -1};
  }
  void AddAll(BlobId blob, TreeNode node, int use = 0) {
    for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
      coverage_.Add(Key(blob, node, use), chunk, ChunkBuffer());
    }
  }

  const ModelSpec model_ = SmallModel();
  StepCoverage coverage_{&model_, 4};
};

TEST_F(StepCoverageTest, NothingIsMissingBeforeTheFirstStep) {
  EXPECT_EQ(coverage_.missing_chunks(), 0);
  EXPECT_EQ(coverage_.next_layer(), std::nullopt);
  EXPECT_THAT(coverage_.MissingVnodes(), ElementsAre(false, false, false, false));
  EXPECT_THAT(coverage_.VnodesMissingNext(), ElementsAre(false, false, false, false));
  EXPECT_THAT(coverage_.MissingBlobs(), IsEmpty());
}

TEST_F(StepCoverageTest, KnowsWhoIsFurthestBehind) {
  coverage_.Begin({});
  EXPECT_THAT(coverage_.VnodesMissingNext(), ElementsAre(true, true, true, true));
  // Vnodes 0 and 1 are through the head, of which 2 lacks one blob and 3 both; below it everybody lacks something.
  AddAll(kLnF, {0, 2});
  AddAll(kLnF, {2, 1});
  AddAll(kWte, {0, 2}, 1);
  EXPECT_THAT(coverage_.VnodesMissingNext(), ElementsAre(false, false, true, true));
  EXPECT_THAT(coverage_.MissingVnodes(), ElementsAre(true, true, true, true));
  AddAll(kLnF, {3, 1});
  AddAll(kWte, {2, 2}, 1);
  AddAll(kBlock1, {0, 2});
  EXPECT_THAT(coverage_.VnodesMissingNext(), ElementsAre(false, false, true, true));
}

TEST_F(StepCoverageTest, KnowsWhichLayerBackwardCompletesNext) {
  coverage_.Begin({});
  EXPECT_EQ(coverage_.next_layer(), kHead);
  AddAll(kBlock1, {0, 4});
  AddAll(kLnF, {0, 4});
  EXPECT_EQ(coverage_.next_layer(), kHead);
  AddAll(kWte, {0, 4}, 1);
  EXPECT_EQ(coverage_.next_layer(), kLayer0);
  AddAll(kBlock0, {0, 4});
  AddAll(kWte, {0, 4}, 0);
  EXPECT_EQ(coverage_.next_layer(), kEmbedding);
  EXPECT_THAT(coverage_.MissingBlobs(), ElementsAre(kWpe));
  AddAll(kWpe, {0, 4});
  EXPECT_EQ(coverage_.next_layer(), std::nullopt);
  EXPECT_EQ(coverage_.missing_chunks(), 0);
  coverage_.Begin({});
  EXPECT_EQ(coverage_.next_layer(), kHead);
  EXPECT_EQ(coverage_.missing_chunks(), 11);
}

TEST_F(StepCoverageTest, AChunkIsWholeWithAllItsUsesAndStaysSoOnceConsumed) {
  coverage_.Begin({});
  AddAll(kWte, {0, 4}, 1);
  EXPECT_FALSE(coverage_.IsWhole(kWte, 0));
  AddAll(kWte, {0, 2}, 0);
  AddAll(kWte, {2, 2}, 0);
  EXPECT_TRUE(coverage_.IsWhole(kWte, 0));
  EXPECT_TRUE(coverage_.IsWhole(kWte));
  const std::vector<HeldContribution> held = coverage_.Consume(kWte, 0, 0);
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[1].node, (TreeNode{2, 2}));
  EXPECT_TRUE(coverage_.IsWhole(kWte, 0));
  EXPECT_TRUE(coverage_.Covers(Key(kWte, {1, 1})));
  EXPECT_EQ(coverage_.missing_chunks(), 10);
}

TEST_F(StepCoverageTest, AUseThatIsWholeCoversEveryNodeAndIsTheRestsCompletion) {
  coverage_.Begin({});
  const ContributionKey head = Key(kWte, {0, 4}, 1), first_half = Key(kWte, {0, 2}), second_half = Key(kWte, {2, 2});
  AddAll(kWte, {0, 2}, 1);
  EXPECT_FALSE(coverage_.HasAllButFirstUse(kWte, 0));
  EXPECT_FALSE(coverage_.Covers(head, 0));
  AddAll(kWte, {2, 2}, 1);
  EXPECT_TRUE(coverage_.HasAllButFirstUse(kWte, 0));
  EXPECT_TRUE(coverage_.Covers(head, 0));
  EXPECT_EQ(coverage_.Held(kWte, 1, 0).size(), 2u);
  EXPECT_FALSE(coverage_.IsWholeWith(first_half, 0));
  AddAll(kWte, {0, 2});
  EXPECT_TRUE(coverage_.IsWholeWith(second_half, 0));
  EXPECT_TRUE(coverage_.IsWholeWith(Key(kWte, {0, 4}), 0));
  AddAll(kWte, {2, 2});
  EXPECT_FALSE(coverage_.HasAllButFirstUse(kWte, 0));
  EXPECT_FALSE(coverage_.HasAllButFirstUse(kBlock0, 0));  // it has one
}

TEST_F(StepCoverageTest, CoversAKeyWhenEachOfItsChunksIsThere) {
  coverage_.Begin({});
  const ContributionKey whole = Key(kBlock0, {0, 1});
  ContributionKey part = whole;
  part.chunks = {1, 2};
  coverage_.Add(Key(kBlock0, {0, 2}), 1, ChunkBuffer());
  EXPECT_TRUE(coverage_.Covers(part, 1));
  EXPECT_FALSE(coverage_.Covers(part));
  coverage_.Add(part, 2, ChunkBuffer());
  EXPECT_TRUE(coverage_.Covers(part));
  EXPECT_FALSE(coverage_.Covers(whole));
  EXPECT_FALSE(coverage_.IsWhole(kBlock0));
}

TEST_F(StepCoverageTest, WhatTheStepDropsIsNotMissing) {
  coverage_.Begin({false, false, false, /*kBlock1*/ true, false});
  EXPECT_TRUE(coverage_.is_dropped(kBlock1));
  EXPECT_EQ(coverage_.num_uses(kBlock1), 0);
  EXPECT_EQ(coverage_.missing_chunks(), 7);
  EXPECT_THAT(coverage_.MissingBlobs(), ElementsAre(kWte, kWpe, kBlock0, kLnF));
  AddAll(kLnF, {0, 4});
  AddAll(kWte, {0, 4}, 1);
  EXPECT_EQ(coverage_.next_layer(), kLayer0);
  coverage_.Begin({});
  AddAll(kLnF, {0, 4});
  AddAll(kWte, {0, 4}, 1);
  EXPECT_EQ(coverage_.next_layer(), kLayer1);
}

}  // namespace
}  // namespace eps::server
