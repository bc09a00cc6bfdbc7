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

TEST(DocumentPackingTest, WhatIsNotWantedTakesNoPlace) {
  const std::vector<int64_t> rows = {4, 9, 3, 0};
  const auto is_wanted = [](const DocumentPiece& piece) {
    return piece.document != 0 && !(piece.document == 1 && piece.first_row == 0);
  };
  const DocumentPacking cut(rows, {.context = 5, .may_be_cut = true, .packs = false, .is_wanted = is_wanted});
  ASSERT_EQ(cut.num_samples(), 2);
  EXPECT_EQ(cut.pieces(0)[0], (DocumentPiece{1, 5, 4}));
  EXPECT_EQ(cut.pieces(1)[0], (DocumentPiece{2, 0, 3}));
  EXPECT_EQ(cut.num_rows(), 7);
  EXPECT_EQ(cut.num_documents_unwanted(), 1);  // the one without rows has nothing to be wanted
  const DocumentPacking ended(rows, {.context = 5, .packs = false, .is_wanted = is_wanted});
  EXPECT_EQ(ended.num_samples(), 1);
  EXPECT_EQ(ended.num_documents_ended_early(), 1);
  EXPECT_EQ(ended.num_rows_left_out(), 4);
  EXPECT_EQ(ended.num_documents_unwanted(), 2);
}

}  // namespace
}  // namespace eps
