#include "eps_server/aggregation/aggregator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/small_model.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Consumed {
  StepId step;
  BlobId blob;
  int64_t chunk;
  ChunkGradient gradient;
};

std::string Nodes(const ChunkGradient& gradient) {
  std::string text;
  for (const GradientOperand& operand : gradient.operands) text += DebugString(operand.node);
  return text;
}

class AggregatorTest : public ::testing::Test {
 protected:
  void Start(int virtual_nodes, int64_t window_bytes = 0, Dtype gradients = Dtype::kF32) {
    auto created = Aggregator::Create({.model = &model_,
                                       .virtual_nodes = virtual_nodes,
                                       .gradients = gradients,
                                       .window_bytes = window_bytes,
                                       .consume =
                                           [this](StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
                                             consumed_.push_back({step, blob, chunk, std::move(gradient)});
                                           },
                                       .show_later_uses =
                                           [this](StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
                                             shown_.push_back({step, blob, chunk, std::move(gradient)});
                                           },
                                       .on_step_in = [this](StepId step) { steps_in_.push_back(step.value()); }});
    ASSERT_OK(created);
    aggregator_ = *std::move(created);
    aggregator_->BeginStep(StepId(0));
  }

  // Of the whole blob.
  ContributionKey Key(BlobId blob, int use, TreeNode node, int64_t step = 0, Dtype dtype = Dtype::kF32) {
    const bool exists = blob >= kWte && blob <= kLnF;
    return {StepId(step), blob, use, node, exists ? model_.blob(blob).all_chunks() : ChunkRange{0, 1}, dtype, -1};
  }

  // The offer's answers, in order, appear in `answers_` as "name:admitted".
  void Offer(const ContributionKey& key, const std::string& name) {
    aggregator_->Offer(key, [this, name](absl::StatusOr<Verdict> verdict) {
      answers_.push_back(name + (!verdict.ok()                    ? ":" + std::string(verdict.status().message())
                                 : *verdict == Verdict::kAdmitted ? ":admitted"
                                                                  : ":not wanted"));
    });
  }
  std::vector<std::string> Answers() { return std::exchange(answers_, {}); }

  std::vector<std::byte> Payload(const ContributionKey& key, int64_t chunk) {
    return std::vector<std::byte>(static_cast<size_t>(model_.blob(key.blob).chunk_elems(chunk) * SizeOf(key.dtype)),
                                  std::byte(key.node.first));
  }
  absl::StatusOr<ChunkOutcome> Add(const ContributionKey& key, int64_t chunk) {
    return aggregator_->AddChunk(key, chunk, Payload(key, chunk));
  }
  // Offers and sends all of it; returns how many chunks counted, -1 if it was not admitted.
  int Send(const ContributionKey& key) {
    answers_.clear();
    Offer(key, "");
    if (Answers() != std::vector<std::string>{":admitted"}) return -1;
    int counted = 0;
    for (int64_t c = 0; c < model_.blob(key.blob).num_chunks(); ++c) {
      const ChunkOutcome outcome = *Add(key, c);
      counted += outcome.counted ? 1 : 0;
      if (outcome.complete) break;
    }
    return counted;
  }
  // What a contribution to the whole blob costs: whole pages per chunk.
  int64_t BlobBytes(BlobId blob) const {
    int64_t sum = 0;
    for (int64_t c = 0; c < model_.blob(blob).num_chunks(); ++c) {
      sum += (model_.blob(blob).chunk_elems(c) * 4 + 4095) / 4096 * 4096;
    }
    return sum;
  }

  const ModelSpec model_ = SmallModel();
  std::unique_ptr<Aggregator> aggregator_;
  std::vector<int64_t> steps_in_;
  std::vector<std::string> answers_;
  std::vector<Consumed> shown_;     // without the first use
  std::vector<Consumed> consumed_;  // destroyed first: memory that is given back makes the aggregator answer
};

TEST_F(AggregatorTest, ChunkIsHandedOverWhenItsTreeIsWhole) {
  Start(4);
  EXPECT_EQ(Send(Key(kBlock0, 0, {2, 2})), 4);
  EXPECT_EQ(Send(Key(kBlock0, 0, {0, 1})), 4);
  EXPECT_THAT(consumed_, IsEmpty());
  EXPECT_EQ(Send(Key(kBlock0, 0, {1, 1})), 4);
  ASSERT_EQ(consumed_.size(), 4u);
  EXPECT_EQ(consumed_[2].chunk, 2);
  EXPECT_EQ(Nodes(consumed_[2].gradient), "{0}{1}{2..3}");
  EXPECT_EQ(consumed_[2].gradient.operands[2].values[0], std::byte{2});
  EXPECT_EQ(consumed_[2].gradient.program.size(), 5u);
}

TEST_F(AggregatorTest, TiedBlobIsCompleteWithBothUsesAndRootsAreAddedInLayerOrder) {
  Start(2);
  EXPECT_EQ(Send(Key(kWte, 1, {0, 2})), 1);
  EXPECT_THAT(consumed_, IsEmpty());
  EXPECT_EQ(Send(Key(kWte, 0, {0, 1})), 1);
  EXPECT_EQ(Send(Key(kWte, 0, {1, 1})), 1);
  ASSERT_EQ(consumed_.size(), 1u);
  const ChunkGradient& gradient = consumed_[0].gradient;
  EXPECT_EQ(Nodes(gradient), "{0}{1}{0..1}");
  EXPECT_EQ(gradient.operands[2].use, 1);
  std::string program;
  for (const SumOp& op : gradient.program) {
    program += op.kind == SumOp::Kind::kAdd ? "+" : std::to_string(op.operand);
  }
  EXPECT_EQ(program, "01+2+");
}

// Whatever of the first use is there, but not once all of it is; of blobs of one use nothing.
TEST_F(AggregatorTest, WhatAllUsesButTheFirstGiveIsShownOnceAndStays) {
  Start(2);
  EXPECT_EQ(Send(Key(kWte, 1, {0, 1})), 1);
  EXPECT_EQ(Send(Key(kWte, 0, {1, 1})), 1);
  EXPECT_THAT(shown_, IsEmpty());
  EXPECT_EQ(Send(Key(kWte, 1, {1, 1})), 1);
  ASSERT_EQ(shown_.size(), 1u);
  EXPECT_EQ(shown_[0].blob, kWte);
  EXPECT_EQ(Nodes(shown_[0].gradient), "{0}{1}");
  EXPECT_EQ(shown_[0].gradient.program.size(), 3u);
  EXPECT_EQ(Send(Key(kWte, 1, {0, 2})), -1);
  EXPECT_EQ(Send(Key(kWte, 0, {0, 1})), 1);
  EXPECT_EQ(Send(Key(kBlock1, 0, {0, 2})), 4);
  EXPECT_EQ(shown_.size(), 1u);
  ASSERT_EQ(consumed_.size(), 5u);
  EXPECT_EQ(Nodes(consumed_[0].gradient), "{0}{1}{0}{1}");
  for (int vnode = 0; vnode < 2; ++vnode) {
    const std::byte* values = shown_[0].gradient.operands[vnode].values;
    EXPECT_EQ(values, consumed_[0].gradient.operands[2 + vnode].values);
    EXPECT_EQ(values[0], std::byte(vnode));
  }
}

TEST_F(AggregatorTest, NothingIsShownWhereTheFirstUseCameFirst) {
  Start(1);
  EXPECT_EQ(Send(Key(kWte, 0, {0, 1})), 1);
  EXPECT_EQ(Send(Key(kWte, 1, {0, 1})), 1);
  EXPECT_EQ(consumed_.size(), 1u);
  EXPECT_THAT(shown_, IsEmpty());
}

TEST_F(AggregatorTest, WhatIsLentIsTakenAsItLiesWhereNothingElseIsMissing) {
  Start(2);
  alignas(64) static constexpr std::byte kLent[256 * 100 * 4] = {};
  bool is_given_back = false;
  const auto lend = [&] {
    is_given_back = false;
    return std::shared_ptr<const std::byte>(kLent, [&](const std::byte*) { is_given_back = true; });
  };
  int64_t num_copied = 0;
  const auto add = [&](const ContributionKey& key) {
    Offer(key, "");
    const auto copy = [&](absl::Span<std::byte>) {
      ++num_copied;
      return absl::OkStatus();
    };
    return aggregator_->AddChunk(key, 0, {.num_bytes = sizeof(kLent), .copy = copy, .lent = lend()});
  };
  // The embedding's part is missing, and then a vnode of it.
  ASSERT_OK(add(Key(kWte, 1, {0, 2})));
  EXPECT_TRUE(is_given_back);
  ASSERT_OK(add(Key(kWte, 0, {0, 1})));
  EXPECT_TRUE(is_given_back);
  EXPECT_EQ(num_copied, 2);
  const int64_t used_bytes = aggregator_->window_used_bytes();
  ASSERT_OK(add(Key(kWte, 0, {1, 1})));
  EXPECT_EQ(num_copied, 2);
  EXPECT_FALSE(is_given_back);
  EXPECT_EQ(aggregator_->window_used_bytes(), used_bytes);
  ASSERT_EQ(consumed_.size(), 1u);
  EXPECT_EQ(consumed_[0].gradient.operands[1].values, kLent);
  EXPECT_NE(consumed_[0].gradient.operands[0].values, kLent);
  consumed_.clear();
  EXPECT_TRUE(is_given_back);
  // One that is there already.
  ASSERT_OK(add(Key(kWte, 0, {1, 1})));
  EXPECT_TRUE(is_given_back);
}

TEST_F(AggregatorTest, RepeatedContributionIsAcknowledgedAndCountedOnce) {
  Start(2);
  const ContributionKey key = Key(kWpe, 0, {0, 1});
  Offer(key, "a");
  Offer(key, "b");
  EXPECT_THAT(Answers(), ElementsAre("a:admitted", "b:admitted"));
  EXPECT_EQ(aggregator_->window_used_bytes(), BlobBytes(kWpe));  // one reservation
  const ChunkOutcome first = *Add(key, 0), second = *Add(key, 0);
  EXPECT_TRUE(first.counted && first.complete);
  EXPECT_TRUE(!second.counted && second.complete);
  aggregator_->Abandon(key);  // harmless
  Offer(key, "c");
  EXPECT_THAT(Answers(), ElementsAre("c:not wanted"));
  EXPECT_EQ(aggregator_->window_used_bytes(), BlobBytes(kWpe));
  EXPECT_EQ(Send(Key(kWpe, 0, {1, 1})), 1);
  EXPECT_EQ(Nodes(consumed_.at(0).gradient), "{0}{1}");
}

TEST_F(AggregatorTest, AncestorReplacesPendingDescendantsAndGivesTheirMemoryBack) {
  Start(4);
  EXPECT_EQ(Send(Key(kWpe, 0, {0, 1})), 1);
  EXPECT_EQ(Send(Key(kWpe, 0, {1, 1})), 1);
  EXPECT_EQ(aggregator_->window_used_bytes(), 2 * BlobBytes(kWpe));
  EXPECT_EQ(Send(Key(kWpe, 0, {0, 2})), 1);
  EXPECT_EQ(aggregator_->window_used_bytes(), BlobBytes(kWpe));
  EXPECT_EQ(Send(Key(kWpe, 0, {1, 1})), -1);  // covered
  EXPECT_EQ(Send(Key(kWpe, 0, {0, 4})), 1);
  EXPECT_EQ(Nodes(consumed_.at(0).gradient), "{0..3}");
}

TEST_F(AggregatorTest, LostWorkersHalfAndTheRedoCountOnce) {
  Start(4);
  // {0..3} of a lost worker: two of four chunks came.
  const ContributionKey lost = Key(kBlock1, 0, {0, 4});
  Offer(lost, "lost");
  ASSERT_TRUE(Add(lost, 0)->counted);
  ASSERT_TRUE(Add(lost, 1)->counted);
  EXPECT_EQ(consumed_.size(), 2u);
  EXPECT_EQ(aggregator_->MissingVnodes(), std::vector<bool>(4, true));
  aggregator_->Abandon(lost);
  consumed_.clear();
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
  // The redo, by two survivors.
  EXPECT_EQ(Send(Key(kBlock1, 0, {0, 2})), 2);
  EXPECT_EQ(Send(Key(kBlock1, 0, {2, 2})), 2);
  ASSERT_EQ(consumed_.size(), 2u);
  EXPECT_EQ(consumed_[0].chunk, 2);
  EXPECT_EQ(consumed_[1].chunk, 3);
  EXPECT_EQ(Nodes(consumed_[1].gradient), "{0..1}{2..3}");
}

TEST_F(AggregatorTest, KnowsWhichVnodesAreMissing) {
  Start(4);
  for (const BlobSpec& blob : model_.blobs) {
    for (int use = 0; use < static_cast<int>(blob.uses.size()); ++use) {
      if (blob.id == kBlock0) continue;
      ASSERT_GT(Send(Key(blob.id, use, {0, 4})), 0);
      consumed_.clear();
    }
  }
  ASSERT_GT(Send(Key(kBlock0, 0, {0, 1})), 0);
  const ContributionKey half = Key(kBlock0, 0, {2, 1});
  Offer(half, "half");
  ASSERT_TRUE(Add(half, 3)->counted);
  EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(false, true, true, true));
  EXPECT_FALSE(aggregator_->AllIn());
  EXPECT_THAT(steps_in_, IsEmpty());
  ASSERT_GT(Send(Key(kBlock0, 0, {0, 4})), 0);
  EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(false, false, false, false));
  EXPECT_TRUE(aggregator_->AllIn());
  EXPECT_THAT(steps_in_, ElementsAre(0));
}

TEST_F(AggregatorTest, EveryChunkIsConsumedOncePerStepAndLateOnesAreDropped) {
  Start(1);
  for (int step = 0; step < 3; ++step) {
    for (const BlobSpec& blob : model_.blobs) {
      for (int use = 0; use < static_cast<int>(blob.uses.size()); ++use) {
        ASSERT_EQ(Send(Key(blob.id, use, {0, 1}, step)), blob.num_chunks());
      }
    }
    EXPECT_EQ(consumed_.size(), 11u);
    EXPECT_EQ(steps_in_.size(), static_cast<size_t>(step) + 1);
    consumed_.clear();
    EXPECT_EQ(aggregator_->window_used_bytes(), 0);
    aggregator_->BeginStep(StepId(step + 1));
    const ContributionKey late = Key(kLnF, 0, {0, 1}, step);
    Offer(late, "late");
    EXPECT_THAT(Answers(), ElementsAre("late:not wanted"));
    const ChunkOutcome outcome = *Add(late, 0);
    EXPECT_TRUE(!outcome.counted && outcome.complete);
    aggregator_->Abandon(late);
  }
  EXPECT_THAT(consumed_, IsEmpty());
}

TEST_F(AggregatorTest, WhatDoesNotFitWaitsHighestLayerFirst) {
  const int64_t window = 3 * BlobBytes(kBlock0);
  Start(2, window);
  // Vnode 0 of both blocks and half of the head are under way: the window has room for one more
  // block.
  Offer(Key(kBlock0, 0, {0, 1}), "b0 v0");
  Offer(Key(kBlock1, 0, {0, 1}), "b1 v0");
  EXPECT_THAT(Answers(), ElementsAre("b0 v0:admitted", "b1 v0:admitted"));
  Offer(Key(kBlock0, 0, {1, 1}), "b0 v1");
  EXPECT_THAT(Answers(), ElementsAre("b0 v1:admitted"));
  Offer(Key(kWpe, 0, {0, 1}), "wpe v0");
  Offer(Key(kBlock1, 0, {1, 1}), "b1 v1");
  EXPECT_THAT(Answers(), IsEmpty());
  EXPECT_EQ(aggregator_->waiting_offers(), 2);
  // The head comes first in backward: always admitted, though the window is full.
  Offer(Key(kLnF, 0, {0, 2}), "ln_f");
  Offer(Key(kWte, 1, {0, 2}), "wte");
  EXPECT_THAT(Answers(), ElementsAre("ln_f:admitted", "wte:admitted"));
  EXPECT_GT(aggregator_->window_used_bytes(), window);
  // Once the head is in, block 1 is the one that backward completes next.
  ASSERT_TRUE(Add(Key(kLnF, 0, {0, 2}), 0)->complete);
  EXPECT_THAT(Answers(), IsEmpty());
  ASSERT_TRUE(Add(Key(kWte, 1, {0, 2}), 0)->complete);
  EXPECT_THAT(Answers(), IsEmpty());  // ln_f is finished, and its memory still in use
  consumed_.clear();
  EXPECT_THAT(Answers(), ElementsAre("b1 v1:admitted"));
  // An abandoned reservation makes room for what waits.
  aggregator_->Abandon(Key(kBlock0, 0, {0, 1}));
  EXPECT_THAT(Answers(), IsEmpty());
  aggregator_->Abandon(Key(kBlock0, 0, {1, 1}));
  EXPECT_THAT(Answers(), ElementsAre("wpe v0:admitted"));
}

TEST_F(AggregatorTest, OffersOfSendersWhoAreGoneAreAnsweredOneAfterTheOther) {
  constexpr int kVnodes = 64;
  Start(kVnodes, BlobBytes(kBlock0));
  Offer(Key(kBlock0, 0, {0, 1}), "first");
  EXPECT_THAT(Answers(), ElementsAre("first:admitted"));
  // Each gives up as soon as it is admitted, which makes room for the next one.
  int answered = 0, depth = 0, deepest = 0;
  for (int vnode = 1; vnode < kVnodes; ++vnode) {
    const ContributionKey key = Key(kBlock0, 0, {vnode, 1});
    aggregator_->Offer(key, [this, key, &answered, &depth, &deepest](absl::StatusOr<Verdict> verdict) {
      ASSERT_THAT(verdict, IsOkAndHolds(Verdict::kAdmitted));
      deepest = std::max(deepest, ++depth);
      ++answered;
      aggregator_->Abandon(key);
      --depth;
    });
  }
  EXPECT_EQ(answered, 0);
  aggregator_->Abandon(Key(kBlock0, 0, {0, 1}));
  EXPECT_EQ(answered, kVnodes - 1);
  EXPECT_EQ(deepest, 1);
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
}

TEST_F(AggregatorTest, RedoIsNeverStarvedByAFullWindow) {
  Start(2, 1);  // nothing fits but what goes first
  for (const int vnode : {0, 1}) {
    for (BlobId blob = kWpe; blob < kLnF; blob = BlobId(blob.value() + 1)) Offer(Key(blob, 0, {vnode, 1}), "other");
  }
  EXPECT_THAT(Answers(), IsEmpty());
  // Backward order, one worker after the other.
  for (const auto& [blob, use] : std::vector<std::pair<BlobId, int>>{{kLnF, 0}, {kWte, 1}}) {
    EXPECT_GT(Send(Key(blob, use, {0, 1})), 0);
    EXPECT_GT(Send(Key(blob, use, {1, 1})), 0);
    consumed_.clear();
  }
  EXPECT_THAT(Answers(), ElementsAre("other:admitted", "other:admitted"));  // both of block 1
  EXPECT_EQ(aggregator_->waiting_offers(), 4);
}

// As updates of one step are made while the next one's gradients come: their memory will be free without any of these.
TEST_F(AggregatorTest, WhatGoesFirstWaitsForUpdatesOfTheStepBefore) {
  Start(1, 1);
  for (const auto& [blob, use] :
       std::vector<std::pair<BlobId, int>>{{kLnF, 0}, {kWte, 1}, {kBlock1, 0}, {kBlock0, 0}, {kWte, 0}, {kWpe, 0}}) {
    ASSERT_GT(Send(Key(blob, use, {0, 1})), 0);
    if (blob != kWpe) consumed_.clear();
  }
  ASSERT_FALSE(consumed_.empty());  // the last one's
  aggregator_->BeginStep(StepId(1));
  Offer(Key(kLnF, 0, {0, 1}, 1), "head");
  EXPECT_THAT(Answers(), IsEmpty());
  EXPECT_TRUE(aggregator_->waits_for_updates());
  consumed_.clear();
  EXPECT_THAT(Answers(), ElementsAre("head:admitted"));
  EXPECT_FALSE(aggregator_->waits_for_updates());
}

TEST_F(AggregatorTest, NonfiniteVnodeGoesAlong) {
  Start(2);
  ContributionKey bad = Key(kWpe, 0, {1, 1});
  bad.nonfinite_vnode = 1;
  EXPECT_EQ(Send(bad), 1);
  EXPECT_EQ(Send(Key(kWpe, 0, {0, 1})), 1);
  EXPECT_EQ(consumed_.at(0).gradient.nonfinite_vnode, 1);
}

TEST_F(AggregatorTest, NonsenseIsRefusedByField) {
  Start(4, 0, Dtype::kBf16);
  const auto answer = [this](const ContributionKey& key) {
    Offer(key, "");
    return Answers().at(0);
  };
  using ::testing::StartsWith;
  EXPECT_THAT(answer(Key(BlobId(5), 0, {0, 1})), StartsWith(":blob: 5"));
  EXPECT_THAT(answer(Key(BlobId(-1), 0, {0, 1})), StartsWith(":blob: -1"));
  EXPECT_THAT(answer(Key(kWte, 2, {0, 1})), StartsWith(":use: 2"));
  EXPECT_THAT(answer(Key(kBlock0, -1, {0, 1})), StartsWith(":use: -1"));
  EXPECT_THAT(answer(Key(kWte, 0, {1, 2})), StartsWith(":node: first 1, count 2"));
  EXPECT_THAT(answer(Key(kWte, 0, {0, 5})), StartsWith(":node: first 0, count 5"));
  EXPECT_THAT(answer(Key(kWte, 0, {0, 2}, 0, Dtype::kBf16)), StartsWith(":dtype: BF16 for node {0..1}, must be F32"));
  EXPECT_THAT(answer(Key(kWte, 0, {0, 1}, 0, Dtype::kF32)), StartsWith(":dtype: F32 for node {0}, must be BF16"));
  EXPECT_THAT(answer(Key(kWte, 0, {0, 1}, 0, static_cast<Dtype>(9))), StartsWith(":dtype: 9"));
  EXPECT_THAT(answer(Key(kWte, 0, {0, 1}, 1, Dtype::kBf16)), StartsWith(":step: 1"));
  EXPECT_THAT(answer(Key(kWte, 0, {0, 1}, -1, Dtype::kBf16)), StartsWith(":step: -1"));
  ContributionKey nonfinite = Key(kWte, 0, {0, 1}, 0, Dtype::kBf16);
  nonfinite.nonfinite_vnode = 1;
  EXPECT_THAT(answer(nonfinite), StartsWith(":nonfinite_vnode: 1"));
  nonfinite.nonfinite_vnode = std::numeric_limits<int>::max();
  EXPECT_THAT(answer(nonfinite), StartsWith(":nonfinite_vnode: 2147483647"));
  nonfinite.nonfinite_vnode = -2;
  EXPECT_THAT(answer(nonfinite), StartsWith(":nonfinite_vnode: -2"));

  const auto part = [this](ChunkRange chunks) {
    ContributionKey key = Key(kBlock0, 0, {0, 1}, 0, Dtype::kBf16);
    key.chunks = chunks;
    return key;
  };
  constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max(), kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(answer(part({-1, 1})), StartsWith(":first_chunk: -1"));
  EXPECT_THAT(answer(part({4, 1})), StartsWith(":first_chunk: 4, the blob has 4"));
  EXPECT_THAT(answer(part({kMostInt32, kMostInt32})), StartsWith(":first_chunk: 2147483647"));
  EXPECT_THAT(answer(part({kMost, kMost})), StartsWith(":first_chunk: 9223372036854775807"));
  EXPECT_THAT(answer(part({0, 0})), StartsWith(":num_chunks: 0, from first_chunk on are 1 to 4"));
  EXPECT_THAT(answer(part({3, 2})), StartsWith(":num_chunks: 2, from first_chunk on are 1 to 1"));
  EXPECT_THAT(answer(part({1, kMost})), StartsWith(":num_chunks: 9223372036854775807"));
  EXPECT_THAT(answer(part({1, -1})), StartsWith(":num_chunks: -1"));
  EXPECT_THAT(aggregator_->AddChunk(part({1, 4}), 1, absl::Span<const std::byte>()),
              StatusIs(absl::StatusCode::kInvalidArgument, "num_chunks: 4"));

  const ContributionKey good = Key(kBlock0, 0, {0, 1}, 0, Dtype::kBf16);
  EXPECT_THAT(Add(good, 0), StatusIs(absl::StatusCode::kFailedPrecondition, "not admitted"));
  EXPECT_EQ(answer(good), ":admitted");
  const std::vector<std::byte> payload = Payload(good, 0);
  EXPECT_THAT(aggregator_->AddChunk(good, 4, payload), StatusIs(absl::StatusCode::kInvalidArgument, "chunk: 4"));
  EXPECT_THAT(aggregator_->AddChunk(good, -1, payload), StatusIs(absl::StatusCode::kInvalidArgument, "chunk: -1"));
  EXPECT_THAT(aggregator_->AddChunk(part({1, 2}), 0, payload),
              StatusIs(absl::StatusCode::kInvalidArgument, "chunk: 0, the contribution to blob 2 has chunks 1..2"));
  EXPECT_THAT(aggregator_->AddChunk(part({1, 2}), 1, payload),
              StatusIs(absl::StatusCode::kFailedPrecondition, "not admitted"));
  EXPECT_THAT(
      aggregator_->AddChunk(good, 0, absl::MakeConstSpan(payload).subspan(2)),
      StatusIs(absl::StatusCode::kInvalidArgument, "payload_bytes: 524286, chunk 0 of blob 2 in BF16 has 524288"));
  EXPECT_THAT(aggregator_->AddChunk(Key(kBlock0, 1, {0, 1}), 0, payload),
              StatusIs(absl::StatusCode::kInvalidArgument, "use: 1"));
  EXPECT_TRUE(Add(good, 0)->counted);
}

TEST_F(AggregatorTest, Bf16NeedsARunWithBf16Gradients) {
  Start(2);
  Offer(Key(kWte, 0, {0, 1}, 0, Dtype::kBf16), "");
  EXPECT_THAT(Answers().at(0), ::testing::HasSubstr("precision.gradients"));
}

TEST_F(AggregatorTest, StopAnswersWhatWaitsAndWhatComes) {
  Start(2, 1);
  Offer(Key(kWpe, 0, {0, 1}), "waits");
  aggregator_->Stop(absl::AbortedError("over"));
  EXPECT_THAT(Answers(), ElementsAre("waits:over"));
  Offer(Key(kLnF, 0, {0, 1}), "comes");
  EXPECT_THAT(Answers(), ElementsAre("comes:over"));
  EXPECT_THAT(Add(Key(kLnF, 0, {0, 1}), 0), StatusIs(absl::StatusCode::kAborted, "over"));
}

TEST_F(AggregatorTest, OffersThatWaitAreBounded) {
  Start(1, 1);
  for (int i = 0; i < 3000; ++i) Offer(Key(kWpe, 0, {0, 1}), "");
  EXPECT_LT(aggregator_->waiting_offers(), 1200);
  EXPECT_THAT(answers_.back(), ::testing::HasSubstr("offers wait for the window already"));
}

TEST_F(AggregatorTest, AStepIsInWithoutWhatItDropsAndTheNextOneTakesItAgain) {
  Start(1);
  const auto send_all = [&](int64_t step, BlobId but) {
    for (const BlobId blob : {kLnF, kBlock1, kBlock0, kWpe}) {
      if (blob == but) continue;
      EXPECT_EQ(Send(Key(blob, 0, {0, 1}, step)), model_.blob(blob).num_chunks()) << blob.value();
    }
    for (const int use : {1, 0}) EXPECT_EQ(Send(Key(kWte, use, {0, 1}, step)), 1);
    consumed_.clear();  // their memory is free
  };
  send_all(0, BlobId(-1));
  for (const int64_t step : {1, 2}) {
    const BlobId resting = step == 1 ? kBlock1 : kBlock0, other = step == 1 ? kBlock0 : kBlock1;
    aggregator_->BeginStep(StepId(step), [&] {
      std::vector<bool> dropped(model_.blobs.size(), false);
      dropped[static_cast<size_t>(resting.value())] = true;
      return dropped;
    }());
    EXPECT_THAT(aggregator_->MissingBlobs(), ElementsAre(kWte, kWpe, other, kLnF));
    Offer(Key(resting, 0, {0, 1}, step), "resting");
    EXPECT_EQ(Answers().front().find("resting:blob: "), 0u);
    EXPECT_THAT(Add(Key(resting, 0, {0, 1}, step), 0),
                StatusIs(absl::StatusCode::kInvalidArgument, "is dropped by step"));
    // Of the step before, which had it: late, and no fault.
    Offer(Key(resting, 0, {0, 1}, step - 1), "late");
    EXPECT_THAT(Answers(), ElementsAre("late:not wanted"));
    send_all(step, resting);
    EXPECT_THAT(aggregator_->MissingBlobs(), IsEmpty());
    EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(false));
  }
  aggregator_->BeginStep(StepId(3));
  send_all(3, BlobId(-1));
  EXPECT_THAT(steps_in_, ElementsAre(0, 1, 2, 3));
}

TEST(FrozenAggregationTest, AStepIsInWithoutWhatIsFrozenAndItIsRefusedByName) {
  const ModelSpec model = *BuildModel({.num_layers = 1,
                                       .d_model = 64,
                                       .num_heads = 2,
                                       .context = 16,
                                       .vocab = 100,
                                       .freeze = {"*", "!transformer.h.0.*", "transformer.h.0.mlp.*"}});
  ASSERT_EQ(model.blobs[2].name, "h.0");
  ASSERT_EQ(model.blobs[3].name, "h.0.frozen");
  int steps_in = 0, consumed = 0;
  const auto aggregator = *Aggregator::Create({.model = &model,
                                               .virtual_nodes = 1,
                                               .consume = [&](StepId, BlobId, int64_t, ChunkGradient) { ++consumed; },
                                               .on_step_in = [&](StepId) { ++steps_in; }});
  for (const int64_t step : {0, 1}) {
    aggregator->BeginStep(StepId(step));
    EXPECT_THAT(aggregator->MissingBlobs(), ElementsAre(BlobId(2)));
    const auto key = [&](BlobId blob) {
      return ContributionKey{StepId(step), blob, 0, {0, 1}, model.blob(blob).all_chunks(), Dtype::kF32, -1};
    };
    absl::Status refused;
    aggregator->Offer(key(BlobId(3)), [&](absl::StatusOr<Verdict> verdict) { refused = verdict.status(); });
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, "(h.0.frozen) is frozen"));
    aggregator->Offer(key(BlobId(2)), [](absl::StatusOr<Verdict> verdict) { EXPECT_OK(verdict); });
    const std::vector<std::byte> payload(static_cast<size_t>(model.blob(BlobId(2)).num_elems) * 4);
    ASSERT_OK(aggregator->AddChunk(key(BlobId(2)), 0, payload));
    EXPECT_EQ(steps_in, step + 1);
    EXPECT_EQ(consumed, step + 1);
    EXPECT_THAT(aggregator->MissingBlobs(), IsEmpty());
    EXPECT_THAT(aggregator->MissingVnodes(), ElementsAre(false));
  }
}

}  // namespace
}  // namespace eps::server
