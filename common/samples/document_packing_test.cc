#include "common/samples/document_packing.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;

std::vector<DocumentPiece> Pieces(const DocumentPacking& packing, int64_t sample) {
  const absl::Span<const DocumentPiece> pieces = packing.pieces(sample);
  return {pieces.begin(), pieces.end()};
}

TEST(DocumentPackingTest, APieceGoesWhereTheLeastRoomIsLeftOver) {
  const DocumentPacking packing({6, 7, 3, 0, 4, 2}, {.context = 10});
  ASSERT_EQ(packing.num_samples(), 3);
  EXPECT_THAT(Pieces(packing, 0), ElementsAre(DocumentPiece{0, 0, 6}, DocumentPiece{4, 0, 4}));
  EXPECT_THAT(Pieces(packing, 1), ElementsAre(DocumentPiece{1, 0, 7}, DocumentPiece{2, 0, 3}));
  EXPECT_THAT(Pieces(packing, 2), ElementsAre(DocumentPiece{5, 0, 2}));
  EXPECT_EQ(packing.num_rows(), 22);
  EXPECT_EQ(packing.num_rows_left_out(), 0);
}

TEST(DocumentPackingTest, ALongDocumentIsCutOrEndedEarly) {
  const DocumentPacking cut({25, 4}, {.context = 10, .may_be_cut = true});
  ASSERT_EQ(cut.num_samples(), 3);
  EXPECT_THAT(Pieces(cut, 1), ElementsAre(DocumentPiece{0, 10, 10}));
  EXPECT_THAT(Pieces(cut, 2), ElementsAre(DocumentPiece{0, 20, 5}, DocumentPiece{1, 0, 4}));
  const DocumentPacking ended({25, 4}, {.context = 10});
  ASSERT_EQ(ended.num_samples(), 2);
  EXPECT_THAT(Pieces(ended, 0), ElementsAre(DocumentPiece{0, 0, 10}));
  EXPECT_EQ(ended.num_rows_left_out(), 15);
  EXPECT_EQ(ended.num_documents_ended_early(), 1);
}

TEST(DocumentPackingTest, WithoutPackingEachPieceHasASampleOfItsOwn) {
  const DocumentPacking packing({3, 0, 4}, {.context = 10, .packs = false});
  ASSERT_EQ(packing.num_samples(), 2);
  EXPECT_THAT(Pieces(packing, 0), ElementsAre(DocumentPiece{0, 0, 3}));
  EXPECT_THAT(Pieces(packing, 1), ElementsAre(DocumentPiece{2, 0, 4}));
}

TEST(DocumentPackingTest, EveryRowStandsOnceAndNoSampleIsOverfull) {
  constexpr int64_t kContext = 64;
  std::vector<int64_t> rows;
  uint64_t state = 1;
  int64_t total = 0;
  for (int i = 0; i < 5000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    rows.push_back(static_cast<int64_t>((state >> 33) % 100));
    total += rows.back();
  }
  const DocumentPacking packing(rows, {.context = kContext, .may_be_cut = true});
  std::vector<int64_t> seen(rows.size());
  for (int64_t s = 0; s < packing.num_samples(); ++s) {
    int64_t in_sample = 0, last = -1;
    for (const DocumentPiece& piece : packing.pieces(s)) {
      EXPECT_GT(piece.document, last);
      last = piece.document;
      in_sample += piece.num_rows;
      seen[static_cast<size_t>(piece.document)] += piece.num_rows;
    }
    EXPECT_LE(in_sample, kContext);
    EXPECT_GE(in_sample, 1);
  }
  EXPECT_EQ(seen, rows);
  EXPECT_EQ(packing.num_rows(), total);
  // 97% full, where one document a sample would be some 60%.
  EXPECT_LE(packing.num_samples() * kContext * 97, total * 100);
}

TEST(DocumentPackingTest, NoDocumentsGiveNoSamples) {
  EXPECT_EQ(DocumentPacking({}, {.context = 4}).num_samples(), 0);
  EXPECT_EQ(DocumentPacking({0, 0}, {.context = 4}).num_samples(), 0);
}

}  // namespace
}  // namespace eps
