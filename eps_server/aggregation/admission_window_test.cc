#include "eps_server/aggregation/admission_window.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/aggregation/contribution_key.h"
#include "eps_server/aggregation/small_model.h"
#include "eps_server/aggregation/step_coverage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kVnodes = 4;

class AdmissionWindowTest : public ::testing::Test {
 protected:
  void Start(int64_t window_bytes) {
    coverage_.Begin({});
    window_ = std::make_unique<AdmissionWindow>(AdmissionWindow::Options{
        .model = &model_, .pool = pool_.get(), .virtual_nodes = kVnodes, .window_bytes = window_bytes});
  }

  // Of the whole blob.
  ContributionKey Key(BlobId blob, TreeNode node, int use = 0) const {
    return {StepId(0), blob, use, node, model_.blob(blob).all_chunks(), Dtype::kF32, -1};
  }
  int64_t BlobBytes(BlobId blob) const {
    int64_t sum = 0;
    for (int64_t c = 0; c < model_.blob(blob).num_chunks(); ++c) sum += ChunkBytes(blob, c);
    return sum;
  }
  // Whole pages.
  int64_t ChunkBytes(BlobId blob, int64_t chunk) const {
    return (model_.blob(blob).chunk_elems(chunk) * 4 + 4095) / 4096 * 4096;
  }

  void Wait(const ContributionKey& key, const std::string& name) {
    ASSERT_OK(window_->CheckLine());
    window_->Wait(key, [this, name](absl::StatusOr<Verdict> verdict) {
      answers_.push_back(name + (!verdict.ok()                    ? ":" + std::string(verdict.status().message())
                                 : *verdict == Verdict::kAdmitted ? ":admitted"
                                                                  : ":not wanted"));
    });
  }
  std::vector<std::string> Give(std::vector<AdmissionWindow::Answered> answered) {
    for (auto& [answer, verdict] : answered) answer(std::move(verdict));
    return std::exchange(answers_, {});
  }
  std::vector<std::string> Admit(bool finished_blob_waits = false) {
    return Give(window_->Admit(coverage_, finished_blob_waits));
  }
  std::vector<std::string> Offer(const ContributionKey& key, const std::string& name) {
    Wait(key, name);
    return Admit();
  }
  // A chunk came, and takes memory of the pool.
  void Hold(const ContributionKey& key, int64_t chunk) {
    ChunkBuffer buffer = *pool_->Take(model_.blob(key.blob).chunk_elems(chunk) * 4);
    window_->GiveBack(key, chunk);
    coverage_.Add(key, chunk, std::move(buffer));
  }
  // All of it came, and was consumed.
  void Finish(BlobId blob, int use = 0) {
    const ContributionKey key = Key(blob, {0, kVnodes}, use);
    for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
      Hold(key, chunk);
      coverage_.Consume(blob, use, chunk);
    }
    window_->Close(key);
  }

  const ModelSpec model_ = SmallModel();
  const std::shared_ptr<ChunkPool> pool_ = ChunkPool::Create(0);
  StepCoverage coverage_{&model_, kVnodes};
  std::unique_ptr<AdmissionWindow> window_;
  std::vector<std::string> answers_;
};

TEST_F(AdmissionWindowTest, IsFilledToTheLastByteAndNotBeyond) {
  Start(2 * BlobBytes(kBlock0));
  EXPECT_EQ(window_->window_bytes(), 2 * BlobBytes(kBlock0));
  EXPECT_THAT(Offer(Key(kBlock0, {0, 1}), "v0"), ElementsAre("v0:admitted"));
  EXPECT_THAT(Offer(Key(kBlock0, {1, 1}), "v1"), ElementsAre("v1:admitted"));
  EXPECT_EQ(window_->used_bytes(), window_->window_bytes());
  EXPECT_THAT(Offer(Key(kWpe, {0, 1}), "wpe"), IsEmpty());
  EXPECT_EQ(window_->num_waiting(), 1);
  EXPECT_FALSE(window_->IsAdmitted(Key(kWpe, {0, 1})));

  Start(2 * BlobBytes(kBlock0) - 1);
  EXPECT_THAT(Offer(Key(kBlock0, {0, 1}), "v0"), ElementsAre("v0:admitted"));
  EXPECT_THAT(Offer(Key(kBlock0, {1, 1}), "v1"), IsEmpty());
}

TEST_F(AdmissionWindowTest, AChunkThatCameIsHeldAndNoLongerReserved) {
  Start(BlobBytes(kBlock0));
  const ContributionKey key = Key(kBlock0, {0, 2});
  EXPECT_THAT(Offer(key, "block"), ElementsAre("block:admitted"));
  Hold(key, 1);
  EXPECT_EQ(pool_->held_bytes(), ChunkBytes(kBlock0, 1));
  EXPECT_EQ(window_->used_bytes(), BlobBytes(kBlock0));
  window_->GiveBack(key, 1);  // harmless
  EXPECT_EQ(window_->used_bytes(), BlobBytes(kBlock0));
  window_->Close(key);
  EXPECT_EQ(window_->used_bytes(), pool_->held_bytes());
  window_->GiveBack(key, 2);
  window_->Close(key);
  EXPECT_EQ(window_->used_bytes(), pool_->held_bytes());
  // Only what is missing is reserved.
  EXPECT_THAT(Offer(Key(kBlock0, {0, 2}), "again"), ElementsAre("again:admitted"));
  EXPECT_EQ(window_->used_bytes(), BlobBytes(kBlock0));
}

TEST_F(AdmissionWindowTest, TheLineIsByLayerThenByNodeThenByArrival) {
  Start(1);
  EXPECT_THAT(Offer(Key(kWte, {0, 1}), "wte"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock0, {1, 1}), "b0 v1"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock0, {0, 2}), "b0 v0..1"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock0, {0, 1}), "b0 v0"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock0, {0, 1}), "b0 v0 again"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock1, {3, 1}), "b1 v3"), IsEmpty());
  EXPECT_THAT(Give(window_->Refuse(absl::AbortedError("over"))),
              ElementsAre("b1 v3:over", "b0 v0:over", "b0 v0 again:over", "b0 v0..1:over", "b0 v1:over", "wte:over"));
  EXPECT_EQ(window_->num_waiting(), 0);
}

TEST_F(AdmissionWindowTest, WhatWouldFitDoesNotOvertakeWhatDoesNot) {
  Start(BlobBytes(kBlock0));
  const ContributionKey first = Key(kBlock0, {0, 1});
  EXPECT_THAT(Offer(first, "first"), ElementsAre("first:admitted"));
  EXPECT_THAT(Offer(Key(kWpe, {0, 1}), "wpe"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock0, {1, 1}), "b0"), IsEmpty());
  Hold(first, 0);
  window_->Close(first);
  ASSERT_GT(window_->window_bytes() - window_->used_bytes(), BlobBytes(kWpe));
  EXPECT_THAT(Admit(), IsEmpty());
  Finish(kBlock0);
  EXPECT_THAT(Admit(), ElementsAre("b0:not wanted", "wpe:admitted"));
}

TEST_F(AdmissionWindowTest, SendersOfOnePartShareAReservationThatTheLastOneGivesBack) {
  Start(BlobBytes(kBlock0));
  const ContributionKey key = Key(kBlock0, {0, 1});
  EXPECT_THAT(Offer(key, "a"), ElementsAre("a:admitted"));
  EXPECT_THAT(Offer(key, "b"), ElementsAre("b:admitted"));
  EXPECT_EQ(window_->used_bytes(), BlobBytes(kBlock0));
  EXPECT_THAT(Offer(Key(kBlock0, {1, 1}), "other"), IsEmpty());
  EXPECT_FALSE(window_->Abandon(key));
  EXPECT_TRUE(window_->IsAdmitted(key));
  EXPECT_THAT(Admit(), IsEmpty());
  EXPECT_TRUE(window_->Abandon(key));
  EXPECT_FALSE(window_->IsAdmitted(key));
  EXPECT_FALSE(window_->Abandon(key));  // harmless
  EXPECT_THAT(Admit(), ElementsAre("other:admitted"));
}

TEST_F(AdmissionWindowTest, TheNextLayerOfBackwardGoesFirstUnlessAFinishedBlobWaits) {
  Start(1);  // nothing fits but what goes first
  EXPECT_THAT(Offer(Key(kBlock1, {0, 4}), "b1"), IsEmpty());
  EXPECT_THAT(Offer(Key(kBlock0, {0, 4}), "b0"), IsEmpty());
  Wait(Key(kLnF, {0, 4}), "ln_f");
  EXPECT_THAT(Admit(/*finished_blob_waits=*/true), IsEmpty());
  EXPECT_THAT(Admit(), ElementsAre("ln_f:admitted"));
  Finish(kLnF);
  EXPECT_THAT(Admit(), IsEmpty());  // the head's other blob is missing
  Finish(kWte, 1);
  EXPECT_THAT(Admit(/*finished_blob_waits=*/true), IsEmpty());
  EXPECT_THAT(Admit(), ElementsAre("b1:admitted"));
  EXPECT_EQ(window_->num_waiting(), 1);
}

TEST_F(AdmissionWindowTest, WhatWasCoveredMeanwhileIsNotWanted) {
  Start(1);
  EXPECT_THAT(Offer(Key(kBlock1, {0, 2}), "half"), IsEmpty());
  ContributionKey part = Key(kBlock1, {2, 2});
  part.chunks = {1, 2};
  EXPECT_THAT(Offer(part, "part"), IsEmpty());
  for (const int64_t chunk : {1, 2}) Hold(Key(kBlock1, {0, 4}), chunk);
  EXPECT_THAT(Admit(), IsEmpty());  // the half, in front, still lacks two chunks
  for (const int64_t chunk : {0, 3}) Hold(Key(kBlock1, {0, 2}), chunk);
  EXPECT_THAT(Admit(), ElementsAre("half:not wanted", "part:not wanted"));
}

TEST_F(AdmissionWindowTest, AStepThatBeginsFindsNothingReserved) {
  Start(BlobBytes(kBlock0));
  const ContributionKey key = Key(kBlock0, {0, 1});
  EXPECT_THAT(Offer(key, "first"), ElementsAre("first:admitted"));
  EXPECT_THAT(Offer(Key(kWpe, {0, 1}), "late"), IsEmpty());
  EXPECT_THAT(Give(window_->BeginStep()), ElementsAre("late:not wanted"));
  EXPECT_EQ(window_->used_bytes(), 0);
  EXPECT_EQ(window_->num_waiting(), 0);
  EXPECT_FALSE(window_->IsAdmitted(key));
}

TEST_F(AdmissionWindowTest, TheLineIsBounded) {
  Start(1);
  // wte in two uses, wpe and ln_f in one chunk, two blocks in four: 12 parts.
  constexpr int64_t kMost = 1024 + 4 * kVnodes * 12;
  for (int64_t i = 0; i < kMost; ++i) Wait(Key(kWpe, {0, 1}), "");
  EXPECT_EQ(window_->num_waiting(), kMost);
  EXPECT_THAT(window_->CheckLine(), StatusIs(absl::StatusCode::kResourceExhausted,
                                             std::to_string(kMost) + " offers wait for the window already"));
}

}  // namespace
}  // namespace eps::server
