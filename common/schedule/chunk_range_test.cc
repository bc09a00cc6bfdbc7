#include "common/schedule/chunk_range.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ChunkRangeTest, KnowsItsChunks) {
  const ChunkRange range = {.first = 2, .count = 3};
  EXPECT_EQ(range.end(), 5);
  EXPECT_FALSE(range.empty());
  EXPECT_FALSE(range.Contains(1));
  EXPECT_TRUE(range.Contains(2));
  EXPECT_TRUE(range.Contains(4));
  EXPECT_FALSE(range.Contains(5));
  EXPECT_TRUE(ChunkRange().empty());
  EXPECT_FALSE(ChunkRange().Contains(0));
  EXPECT_EQ(range, (ChunkRange{2, 3}));
  EXPECT_NE(range, (ChunkRange{2, 2}));
}

TEST(ChunkRangeTest, IsPrintedForMessages) {
  EXPECT_EQ(DebugString(ChunkRange{2, 3}), "chunks 2..4");
  EXPECT_EQ(DebugString(ChunkRange{7, 1}), "chunk 7");
  EXPECT_EQ(DebugString(ChunkRange{7, 0}), "no chunks");
}

TEST(PartOfTest, PartsAreWhatTheFormulaSays) {
  EXPECT_EQ(PartOf(7, 0, 3), (ChunkRange{0, 2}));
  EXPECT_EQ(PartOf(7, 1, 3), (ChunkRange{2, 2}));
  EXPECT_EQ(PartOf(7, 2, 3), (ChunkRange{4, 3}));
  EXPECT_EQ(PartOf(5, 0, 1), (ChunkRange{0, 5}));
  // Fewer chunks than members.
  EXPECT_TRUE(PartOf(1, 0, 2).empty());
  EXPECT_EQ(PartOf(1, 1, 2), (ChunkRange{0, 1}));
  EXPECT_TRUE(PartOf(0, 0, 2).empty());
}

TEST(PartOfTest, PartsFollowEachOtherCoverEverythingAndDifferByOneAtMost) {
  for (int64_t num_chunks : {0, 1, 2, 5, 16, 197, 1000003}) {
    for (int size = 1; size <= 17; ++size) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const ChunkRange part = PartOf(num_chunks, rank, size);
        EXPECT_EQ(part.first, next);
        EXPECT_GE(part.count, num_chunks / size);
        EXPECT_LE(part.count, (num_chunks + size - 1) / size);
        next = part.end();
      }
      EXPECT_EQ(next, num_chunks);
    }
  }
}

}  // namespace
}  // namespace eps
