#include "eps_server/optimizer/unread_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/base/byte_size.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// A tensor, and behind it another one, of a blob.
BlobSpec BlobWith(int64_t first, int64_t rows, int64_t row_elems, int64_t behind) {
  const auto aligned = [](int64_t elems) { return RoundUp(elems, kTensorAlignElems); };
  BlobSpec blob;
  blob.tensors = {{.name = "before", .shape = {first}, .offset_elems = 0, .role = TensorRole::kPositionTable},
                  {.name = "table", .shape = {rows, row_elems}, .offset_elems = aligned(first)},
                  {.name = "behind",
                   .shape = {behind},
                   .offset_elems = aligned(first) + aligned(rows * row_elems),
                   .role = TensorRole::kPositionTable}};
  blob.num_elems = blob.tensors[2].offset_elems + aligned(behind);
  return blob;
}

// Each chunk is cut into groups in its middle, so that ranges end where rows do not.
std::vector<GroupRange> RangesOf(const BlobSpec& blob, int64_t chunk) {
  const int64_t num_elems = blob.chunk_elems(chunk), middle = num_elems / 2 / kTensorAlignElems * kTensorAlignElems;
  if (middle == 0) return {{0, num_elems, 1}};
  return {{0, middle, 1}, {middle, num_elems, 2}};
}

// That each element of the chunk is in one part, in its group, and none of a row that is read is in `unread`; returns
// how many are.
int64_t ExpectParted(const BlobSpec& blob, const TensorSpec& table, int64_t chunk, const RowsRead& rows) {
  const std::vector<GroupRange> ranges = RangesOf(blob, chunk);
  const ChunkParts parts = PartsOf(blob, table, chunk, ranges, rows);
  std::vector<int> group(static_cast<size_t>(blob.chunk_elems(chunk)));
  const auto take = [&](const std::vector<GroupRange>& part) {
    int64_t behind = 0;
    for (const GroupRange& range : part) {
      EXPECT_TRUE(range.begin >= behind && range.begin < range.end);
      EXPECT_TRUE(range.begin % kTensorAlignElems == 0 && range.end % kTensorAlignElems == 0);
      for (int64_t i = range.begin; i < range.end; ++i) EXPECT_EQ(std::exchange(group[i], range.group), 0);
      behind = range.end;
    }
  };
  take(parts.unread);
  int64_t num_unread = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] == 0) continue;
    ++num_unread;
    const int64_t elem = chunk * kChunkElems + static_cast<int64_t>(i) - table.offset_elems;
    EXPECT_TRUE(elem >= 0 && elem < table.num_elems() && !rows.IsRead(elem / table.shape[1]));
  }
  take(parts.rest);
  for (const GroupRange& range : ranges) {
    for (int64_t i = range.begin; i < range.end; ++i) EXPECT_EQ(group[i], range.group);
  }
  return num_unread;
}

TEST(PartsOfTest, EachElementIsInOnePartAndNoneOfARowThatIsReadIsUnread) {
  std::mt19937 random(1);
  // Rows that begin and end within a unit, that span chunks, and tables of one chunk and several.
  for (const int64_t row_elems : {64, 96, 128, 10, 640, 100'000, 300'000}) {
    for (const double share_read : {0.0, 0.3, 0.9, 1.0}) {
      const int64_t num_rows = std::max<int64_t>(3, 600'000 / row_elems);
      const BlobSpec blob = BlobWith(/*first=*/200, num_rows, row_elems, /*behind=*/100);
      RowsRead rows(num_rows);
      int64_t all_unread = 0;
      for (int32_t row = 0; row < num_rows; ++row) {
        const bool is_read = std::bernoulli_distribution(share_read)(random);
        if (is_read) rows.Add({row});
        all_unread += is_read ? 0 : row_elems;
      }
      int64_t num_unread = 0;
      for (int64_t chunk = 0; chunk < blob.num_chunks(); ++chunk) {
        num_unread += ExpectParted(blob, blob.tensors[1], chunk, rows);
      }
      // All but what shares a unit with others.
      EXPECT_LE(num_unread, all_unread);
      EXPECT_GE(num_unread, all_unread - 2 * kTensorAlignElems * num_rows);
      if (row_elems % kTensorAlignElems == 0) {
        EXPECT_EQ(num_unread, all_unread);
      }
    }
  }
}

TEST(WithoutEmbeddingTest, AddsZeroToWhatTheHeadGives) {
  const std::vector<float> left = {1, -0.0f, 3}, right = {2, -0.0f, -3};
  const ChunkGradient of_head = {
      .operands = {{Dtype::kF32, reinterpret_cast<const std::byte*>(left.data()), {0, 1}, 1},
                   {Dtype::kF32, reinterpret_cast<const std::byte*>(right.data()), {1, 1}, 1}},
      .program = {{SumOp::Kind::kLoad, 0}, {SumOp::Kind::kLoad, 1}, {SumOp::Kind::kAdd, 0}}};
  const ChunkGradient gradient = WithoutEmbedding(of_head);
  ASSERT_EQ(gradient.operands.size(), 3u);
  ASSERT_EQ(gradient.program.size(), 5u);
  EXPECT_EQ(gradient.program[3].kind, SumOp::Kind::kLoad);
  EXPECT_EQ(gradient.program[3].operand, 2);
  EXPECT_EQ(gradient.program[4].kind, SumOp::Kind::kAdd);
  const auto* zeros = reinterpret_cast<const float*>(gradient.operands[2].values);
  for (int64_t i = 0; i < kChunkElems; ++i) ASSERT_EQ(zeros[i], 0);

  const ChunkGradient nothing = WithoutEmbedding({});
  ASSERT_EQ(nothing.operands.size(), 1u);
  EXPECT_EQ(nothing.program.size(), 1u);
}

TEST(NonzeroOfEmbeddingTest, IsLookedForInUnreadRangesOfTheEmbeddingAlone) {
  std::vector<float> embedding(256), head(256, 1.0f);
  const ChunkGradient whole = {
      .operands = {{Dtype::kF32, reinterpret_cast<const std::byte*>(embedding.data()), {4, 2}, 0},
                   {Dtype::kF32, reinterpret_cast<const std::byte*>(head.data()), {0, 8}, 1}}};
  const std::vector<GroupRange> unread = {{0, 64, 0}, {128, 256, 0}};
  embedding[100] = 1;
  EXPECT_FALSE(NonzeroOfEmbedding(whole, unread).has_value());
  embedding[200] = -0.0f;
  const std::optional<NonzeroValue> found = NonzeroOfEmbedding(whole, unread);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->node, (TreeNode{4, 2}));
  EXPECT_EQ(found->elem, 192);
}

class UnreadRowsTest : public ::testing::Test {
 protected:
  static ChunkGradient Whole() { return {.nonfinite_vnode = 7}; }  // told from others by that
  UnreadRows rows_{std::make_shared<RowsRead>(1)};
  ChunkGradient gradient_ = Whole();
};

TEST_F(UnreadRowsTest, TheRestIsLeftWhereTheOthersAreUpdated) {
  EXPECT_TRUE(rows_.Queue(3));
  EXPECT_FALSE(rows_.Queue(3));  // once
  EXPECT_TRUE(rows_.Begin(3));
  EXPECT_FALSE(rows_.End(3).has_value());
  EXPECT_EQ(rows_.Arrive(3, gradient_), UnreadRows::Arrival::kRest);
  EXPECT_EQ(gradient_.nonfinite_vnode, 7);
  EXPECT_EQ(rows_.Arrive(2, gradient_), UnreadRows::Arrival::kWhole);  // another chunk
}

TEST_F(UnreadRowsTest, WhatComesMeanwhileIsGivenToWhoeverEnds) {
  EXPECT_TRUE(rows_.Queue(3));
  EXPECT_TRUE(rows_.Begin(3));
  EXPECT_EQ(rows_.Arrive(3, gradient_), UnreadRows::Arrival::kParked);
  const std::optional<ChunkGradient> whole = rows_.End(3);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->nonfinite_vnode, 7);
  EXPECT_EQ(rows_.Arrive(3, gradient_), UnreadRows::Arrival::kRest);
}

TEST_F(UnreadRowsTest, WhatWasNotBegunIsOvertaken) {
  EXPECT_TRUE(rows_.Queue(3));
  EXPECT_EQ(rows_.Arrive(3, gradient_), UnreadRows::Arrival::kWhole);
  EXPECT_FALSE(rows_.Begin(3));
  EXPECT_FALSE(rows_.Queue(3));
  EXPECT_EQ(rows_.Arrive(4, gradient_), UnreadRows::Arrival::kWhole);
  EXPECT_FALSE(rows_.Queue(4));  // its memory may be gone
}

TEST_F(UnreadRowsTest, NothingIsEarlyWhereNobodyKnowsTheTokens) {
  UnreadRows unknown;
  EXPECT_FALSE(unknown.Queue(0));
  EXPECT_EQ(unknown.Arrive(0, gradient_), UnreadRows::Arrival::kWhole);
}

}  // namespace
}  // namespace eps::server
