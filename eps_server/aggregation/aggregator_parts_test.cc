#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/aggregation/small_model.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Parts of blobs: a group's members each push their chunks, and whoever redoes a lost one's pushes whole blobs.
namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Elements of a chunk that are looked at: every so manyeth.
constexpr int64_t kStride = 127;

// The gradient of a vnode: such that another order of additions gives other bits.
float Leaf(int vnode, BlobId blob, int use, int64_t elem) {
  const int64_t mixed = (elem * 31 + vnode * 17 + use * 5 + blob.value()) % 1009 - 504;
  return ToFloat(ToBf16(static_cast<float>(mixed) / 7.0f * (vnode % 2 == 0 ? 1000.0f : 0.001f)));
}
// The sum of `node` as the tree says it.
float Sum(TreeNode node, BlobId blob, int use, int64_t elem) {
  if (node.is_leaf()) return Leaf(node.first, blob, use, elem);
  const int left = LeftLeaves(node.count);
  return Sum({node.first, left}, blob, use, elem) + Sum({node.first + left, node.count - left}, blob, use, elem);
}

float ValueAt(const GradientOperand& operand, int64_t i) {
  if (operand.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, operand.values + i * 4, sizeof(value));
    return value;
  }
  Bf16 narrow;
  std::memcpy(&narrow, operand.values + i * 2, sizeof(narrow));
  return ToFloat(narrow);
}
float Evaluate(const ChunkGradient& gradient, int64_t i) {
  std::vector<float> stack;
  for (const SumOp& op : gradient.program) {
    if (op.kind == SumOp::Kind::kLoad) {
      stack.push_back(ValueAt(gradient.operands[op.operand], i));
      continue;
    }
    const float right = stack.back();
    stack.pop_back();
    stack.back() += right;
  }
  return stack.back();
}

class AggregatorPartsTest : public ::testing::Test {
 protected:
  // Gradients of leaves are BF16. What is consumed is summed and given back at once.
  void Start(int virtual_nodes, int64_t window_bytes = 0) {
    virtual_nodes_ = virtual_nodes;
    auto created = Aggregator::Create({.model = &model_,
                                       .virtual_nodes = virtual_nodes,
                                       .gradients = Dtype::kBf16,
                                       .window_bytes = window_bytes,
                                       .consume = [this](StepId, BlobId blob, int64_t chunk,
                                                         ChunkGradient gradient) { Consume(blob, chunk, gradient); },
                                       .on_step_in = [this](StepId) { ++steps_in_; }});
    ASSERT_OK(created);
    aggregator_ = *std::move(created);
    aggregator_->BeginStep(StepId(0));
  }

  ContributionKey Key(TreeNode node, ChunkRange chunks, BlobId blob = kBlock0, int use = 0) const {
    return {.step = StepId(0),
            .blob = blob,
            .use = use,
            .node = node,
            .chunks = chunks,
            .dtype = node.is_leaf() ? Dtype::kBf16 : Dtype::kF32};
  }
  ContributionKey Whole(TreeNode node, BlobId blob = kBlock0, int use = 0) const {
    return Key(node, model_.blob(blob).all_chunks(), blob, use);
  }

  // "admitted", "not wanted"; "waits": the answer comes to answers_ when it comes.
  std::string Offer(const ContributionKey& key) {
    const size_t before = answers_.size();
    aggregator_->Offer(key, [this](absl::StatusOr<Verdict> verdict) {
      answers_.push_back(!verdict.ok()                    ? std::string(verdict.status().message())
                         : *verdict == Verdict::kAdmitted ? "admitted"
                                                          : "not wanted");
    });
    if (answers_.size() == before) return "waits";
    std::string answer = std::move(answers_.back());
    answers_.pop_back();
    return answer;
  }
  ChunkOutcome Add(const ContributionKey& key, int64_t chunk) {
    const int64_t num_elems = model_.blob(key.blob).chunk_elems(chunk);
    std::vector<std::byte> payload(static_cast<size_t>(num_elems * SizeOf(key.dtype)));
    for (int64_t i = 0; i < num_elems; i += kStride) {
      const float value = Sum(key.node, key.blob, key.use, chunk * kChunkElems + i);
      const Bf16 narrow = ToBf16(value);
      const bool wide = key.dtype == Dtype::kF32;
      std::memcpy(payload.data() + i * SizeOf(key.dtype), wide ? static_cast<const void*>(&value) : &narrow,
                  static_cast<size_t>(SizeOf(key.dtype)));
    }
    const absl::StatusOr<ChunkOutcome> outcome = aggregator_->AddChunk(key, chunk, payload);
    EXPECT_OK(outcome);
    return outcome.value_or(ChunkOutcome());
  }
  // Offers it and sends it whole, in order; returns the chunks that counted.
  std::vector<int64_t> Send(const ContributionKey& key) {
    EXPECT_EQ(Offer(key), "admitted") << DebugString(key);
    std::vector<int64_t> counted;
    ChunkOutcome outcome;
    for (int64_t chunk = key.chunks.first; chunk < key.chunks.end() && !outcome.complete; ++chunk) {
      outcome = Add(key, chunk);
      if (outcome.counted) counted.push_back(chunk);
    }
    EXPECT_TRUE(outcome.complete) << DebugString(key);
    return counted;
  }
  void SendAllBlobsBut(BlobId left_out) {
    for (const BlobSpec& blob : model_.blobs) {
      for (int use = 0; use < static_cast<int>(blob.uses.size()) && blob.id != left_out; ++use) {
        Send(Whole({0, virtual_nodes_}, blob.id, use));
      }
    }
  }

  // Whole pages.
  int64_t Cost(ChunkRange chunks, Dtype dtype = Dtype::kF32) const {
    int64_t sum = 0;
    for (int64_t chunk = chunks.first; chunk < chunks.end(); ++chunk) {
      sum += (model_.blob(kBlock0).chunk_elems(chunk) * SizeOf(dtype) + 4095) / 4096 * 4096;
    }
    return sum;
  }
  // What was consumed, once, of every chunk of the block has the bits of the tree.
  void ExpectTheBitsOfTheTree() const {
    for (int64_t chunk = 0; chunk < model_.blob(kBlock0).num_chunks(); ++chunk) {
      const auto sums = sums_.find({kBlock0, chunk});
      ASSERT_NE(sums, sums_.end()) << "chunk " << chunk;
      std::vector<float> want;
      for (int64_t i = 0; i < model_.blob(kBlock0).chunk_elems(chunk); i += kStride) {
        want.push_back(Sum({0, virtual_nodes_}, kBlock0, 0, chunk * kChunkElems + i));
      }
      ASSERT_EQ(sums->second.size(), want.size());
      EXPECT_EQ(std::memcmp(sums->second.data(), want.data(), want.size() * sizeof(float)), 0) << "chunk " << chunk;
    }
  }

  const ModelSpec model_ = SmallModel();
  int virtual_nodes_ = 1;
  std::vector<std::string> answers_;
  std::map<std::pair<BlobId, int64_t>, std::vector<float>> sums_;
  std::map<std::pair<BlobId, int64_t>, std::string> nodes_;  // that they were made of, "{0..3}{4}"
  int steps_in_ = 0;
  std::unique_ptr<Aggregator> aggregator_;

 private:
  void Consume(BlobId blob, int64_t chunk, const ChunkGradient& gradient) {
    std::vector<float> sums;
    for (int64_t i = 0; i < model_.blob(blob).chunk_elems(chunk); i += kStride) sums.push_back(Evaluate(gradient, i));
    EXPECT_TRUE(sums_.emplace(std::make_pair(blob, chunk), std::move(sums)).second) << "consumed twice";
    for (const GradientOperand& operand : gradient.operands) nodes_[{blob, chunk}] += DebugString(operand.node);
  }
};

TEST_F(AggregatorPartsTest, AChunkThatCannotBeReadDoesNotCountAndMayComeAgain) {
  Start(2);
  const ContributionKey key = Key({0, 1}, {0, 1});
  EXPECT_EQ(Offer(key), "admitted");
  const int64_t reserved_bytes = aggregator_->window_used_bytes();
  const int64_t num_bytes = model_.blob(key.blob).chunk_elems(0) * SizeOf(key.dtype);
  const auto lost = [](absl::Span<std::byte>) { return absl::InternalError("lost"); };
  EXPECT_THAT(aggregator_->AddChunk(key, 0, {.num_bytes = num_bytes, .copy = lost}),
              StatusIs(absl::StatusCode::kInternal, "lost"));
  EXPECT_EQ(aggregator_->window_used_bytes(), reserved_bytes);
  EXPECT_TRUE(Add(key, 0).counted);
  // What is there already is not read.
  EXPECT_OK(aggregator_->AddChunk(key, 0, {.num_bytes = num_bytes, .copy = lost}));
}

TEST_F(AggregatorPartsTest, PartsOfAGroupAddUp) {
  Start(4);
  const int64_t num_chunks = model_.blob(kBlock0).num_chunks();
  for (const int member : {2, 0, 1}) {
    const ChunkRange part = PartOf(num_chunks, member, 3);
    std::vector<int64_t> all;
    for (int64_t chunk = part.first; chunk < part.end(); ++chunk) all.push_back(chunk);
    EXPECT_EQ(Send(Key({0, 4}, part)), all);
    EXPECT_EQ(aggregator_->window_used_bytes(), 0);
  }
  ExpectTheBitsOfTheTree();
}

TEST_F(AggregatorPartsTest, ARedoOfWholeBlobsAfterPartsOfALostGroupCountsEachChunkOnce) {
  Start(6);
  SendAllBlobsBut(kBlock0);
  // A worker by itself has vnodes 4 and 5. Of the group of three that has 0..3, the third one is lost before its
  // second chunk.
  EXPECT_THAT(Send(Whole({4, 2})), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Send(Key({0, 4}, {0, 1})), ElementsAre(0));
  EXPECT_THAT(Send(Key({0, 4}, {1, 1})), ElementsAre(1));
  const ContributionKey lost = Key({0, 4}, {2, 2});
  EXPECT_EQ(Offer(lost), "admitted");
  EXPECT_TRUE(Add(lost, 2).counted);
  EXPECT_EQ(sums_.count({kBlock0, 2}), 1u);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({3, 1}) * 2);  // {4..5} is held, {0..3} is reserved
  aggregator_->Abandon(lost);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({3, 1}));
  EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(true, true, true, true, false, false));

  // The redo, by others, as leaves and a sum of whole blobs: only the last chunk is missing of each.
  EXPECT_EQ(Offer(Whole({0, 1})), "admitted");
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({3, 1}) + Cost({3, 1}, Dtype::kBf16));
  for (const int64_t chunk : {0, 1, 2}) {
    const ChunkOutcome outcome = Add(Whole({0, 1}), chunk);
    EXPECT_FALSE(outcome.counted || outcome.complete);
  }
  const ChunkOutcome last = Add(Whole({0, 1}), 3);
  EXPECT_TRUE(last.counted && last.complete);
  EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(false, true, true, true, false, false));
  EXPECT_THAT(Send(Whole({1, 1})), ElementsAre(3));
  EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(false, false, true, true, false, false));
  EXPECT_THAT(aggregator_->MissingBlobs(), ElementsAre(kBlock0));
  EXPECT_EQ(steps_in_, 0);
  EXPECT_THAT(Send(Whole({2, 2})), ElementsAre(3));
  EXPECT_THAT(aggregator_->MissingVnodes(), ElementsAre(false, false, false, false, false, false));
  EXPECT_THAT(aggregator_->MissingBlobs(), IsEmpty());
  EXPECT_EQ(steps_in_, 1);
  EXPECT_EQ(nodes_.at({kBlock0, 0}), "{0..3}{4..5}");
  EXPECT_EQ(nodes_.at({kBlock0, 3}), "{0}{1}{2..3}{4..5}");
  ExpectTheBitsOfTheTree();
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
  // What the lost one's peers still have is not wanted.
  EXPECT_EQ(Offer(lost), "not wanted");
  EXPECT_EQ(Offer(Whole({0, 4})), "not wanted");
}

TEST_F(AggregatorPartsTest, APartReplacesPendingDescendantsInItsChunksAlone) {
  Start(4);
  EXPECT_THAT(Send(Whole({0, 1})), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Send(Whole({1, 1})), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(aggregator_->window_used_bytes(), 2 * Cost({0, 4}, Dtype::kBf16));
  EXPECT_THAT(Send(Key({0, 2}, {1, 2})), ElementsAre(1, 2));
  EXPECT_EQ(aggregator_->window_used_bytes(),
            2 * Cost({0, 1}, Dtype::kBf16) + 2 * Cost({3, 1}, Dtype::kBf16) + Cost({1, 2}));
  EXPECT_THAT(Send(Whole({2, 2})), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(nodes_.at({kBlock0, 0}), "{0}{1}{2..3}");
  EXPECT_EQ(nodes_.at({kBlock0, 1}), "{0..1}{2..3}");
  ExpectTheBitsOfTheTree();
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
}

TEST_F(AggregatorPartsTest, OverlappingPartsOfOneNodeFromTwoSendersCountOnce) {
  Start(4);
  const ContributionKey front = Key({0, 4}, {0, 3}), back = Key({0, 4}, {1, 3});
  EXPECT_EQ(Offer(front), "admitted");
  EXPECT_EQ(Offer(back), "admitted");
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({0, 3}) + Cost({1, 3}));
  EXPECT_TRUE(Add(front, 0).counted);
  EXPECT_TRUE(Add(back, 1).counted);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 2}) + Cost({2, 2}));
  ChunkOutcome outcome = Add(front, 1);
  EXPECT_FALSE(outcome.counted || outcome.complete);
  outcome = Add(front, 2);
  EXPECT_TRUE(outcome.counted && outcome.complete);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({2, 2}));  // of the other, of which nothing more came
  outcome = Add(back, 2);
  EXPECT_FALSE(outcome.counted || outcome.complete);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({3, 1}));
  outcome = Add(back, 3);
  EXPECT_TRUE(outcome.counted && outcome.complete);
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
  ExpectTheBitsOfTheTree();
}

TEST_F(AggregatorPartsTest, APartIsCompleteWhenOthersBroughtTheRestOfIt) {
  Start(4);
  const ContributionKey part = Key({0, 2}, {1, 3});
  EXPECT_EQ(Offer(part), "admitted");
  EXPECT_TRUE(Add(part, 1).counted);
  EXPECT_THAT(Send(Key({0, 4}, {2, 2})), ElementsAre(2, 3));
  const ChunkOutcome outcome = Add(part, 2);
  EXPECT_TRUE(!outcome.counted && outcome.complete);
  aggregator_->Abandon(part);  // harmless
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 1}));
}

TEST_F(AggregatorPartsTest, APartWhoseChunksAreAllCoveredIsNotWanted) {
  Start(8);
  EXPECT_THAT(Send(Key({0, 4}, {1, 2})), ElementsAre(1, 2));
  for (const ChunkRange covered : {ChunkRange{1, 1}, ChunkRange{2, 1}, ChunkRange{1, 2}}) {
    EXPECT_EQ(Offer(Key({0, 4}, covered)), "not wanted");
    EXPECT_EQ(Offer(Key({2, 2}, covered)), "not wanted");
    EXPECT_EQ(Offer(Key({3, 1}, covered)), "not wanted");
  }
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 2}));
  // Of those that reach further only the rest is reserved; and other vnodes are wanted.
  EXPECT_EQ(Offer(Key({0, 4}, {0, 2})), "admitted");
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({0, 3}));
  EXPECT_EQ(Offer(Key({2, 2}, {1, 3})), "admitted");
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({0, 4}));
  EXPECT_EQ(Offer(Key({4, 4}, {1, 2})), "admitted");
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({0, 4}) + Cost({1, 2}));
}

TEST_F(AggregatorPartsTest, AnAbandonedPartGivesBackItsOwnReservationAlone) {
  Start(4);
  const ContributionKey part = Key({0, 4}, {1, 2}), whole = Whole({0, 4});
  EXPECT_EQ(Offer(part), "admitted");
  EXPECT_EQ(Offer(part), "admitted");  // by another worker: one reservation
  EXPECT_EQ(Offer(whole), "admitted");
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 2}) + Cost({0, 4}));
  aggregator_->Abandon(Key({0, 4}, {1, 1}));  // nobody's
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 2}) + Cost({0, 4}));
  aggregator_->Abandon(part);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 2}) + Cost({0, 4}));
  aggregator_->Abandon(part);
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({0, 4}));
  EXPECT_TRUE(Add(whole, 1).counted);
  aggregator_->Abandon(whole);
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
  EXPECT_THAT(Send(Key({0, 4}, {2, 2})), ElementsAre(2, 3));
  EXPECT_THAT(Send(Whole({0, 4})), ElementsAre(0));
  ExpectTheBitsOfTheTree();
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
}

TEST_F(AggregatorPartsTest, APartFitsWhereAWholeBlobWaits) {
  Start(4, Cost({0, 4}));
  const BlobId other(3);
  ASSERT_GT(model_.blob(other).uses[0], model_.blob(kBlock0).uses[0]);
  EXPECT_EQ(Offer(Key({0, 4}, {0, 3}, other)), "admitted");  // the window has room for the short chunk
  EXPECT_EQ(Offer(Key({0, 4}, {3, 1})), "admitted");
  EXPECT_EQ(Offer(Key({0, 2}, {0, 2})), "waits");
  EXPECT_EQ(Offer(Key({0, 2}, {2, 2})), "waits");
  EXPECT_EQ(aggregator_->waiting_offers(), 2);
  EXPECT_TRUE(Add(Key({0, 4}, {3, 1}), 3).complete);
  // Of the second only chunk 2 is missing now. Room comes with the other blob's chunks.
  for (const int64_t chunk : {0, 1}) EXPECT_TRUE(Add(Key({0, 4}, {0, 3}, other), chunk).counted);
  EXPECT_THAT(answers_, ElementsAre("admitted"));
  EXPECT_TRUE(Add(Key({0, 4}, {0, 3}, other), 2).complete);
  EXPECT_THAT(answers_, ElementsAre("admitted", "admitted"));
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({0, 3}));
  for (const ChunkRange chunks : {ChunkRange{0, 2}, ChunkRange{2, 2}}) aggregator_->Abandon(Key({0, 2}, chunks));
  EXPECT_EQ(aggregator_->window_used_bytes(), 0);
}

TEST_F(AggregatorPartsTest, AnOfferThatIsCoveredWhileItWaitsIsNotWanted) {
  Start(8, Cost({1, 2}));
  const ContributionKey part = Key({0, 4}, {1, 2});
  EXPECT_EQ(Offer(part), "admitted");
  EXPECT_EQ(Offer(Key({0, 2}, {1, 1})), "waits");
  EXPECT_EQ(Offer(Key({0, 2}, {1, 2})), "waits");
  EXPECT_TRUE(Add(part, 1).counted);
  EXPECT_THAT(answers_, ElementsAre("not wanted"));
  EXPECT_TRUE(Add(part, 2).complete);
  EXPECT_THAT(answers_, ElementsAre("not wanted", "not wanted"));
  EXPECT_EQ(aggregator_->window_used_bytes(), Cost({1, 2}));
}

}  // namespace
}  // namespace eps::server
