#include "gpu_worker/relay/push_pieces.h"

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// A blob of three chunks, the last one short, and behind it, after a gap, a small one.
std::vector<PushedPart> Parts() {
  return {{.use = {.blob = BlobId(4), .use = 1},
           .chunks = {.first = 0, .count = 3},
           .first_elem = 0,
           .num_elems = 2 * kChunkElems + 100},
          {.use = {.blob = BlobId(7)},
           .chunks = {.first = 0, .count = 1},
           .first_elem = 2 * kChunkElems + 128,
           .num_elems = 50}};
}
constexpr int64_t kNumElems = 2 * kChunkElems + 128 + 50;

struct Cut {
  BlobId blob;
  int use;
  ChunkRange chunks;
  int64_t first_elem, num_elems;
  friend bool operator==(const Cut&, const Cut&) = default;
};

std::vector<Cut> CutsAt(int64_t max_elems) {
  std::vector<Cut> cuts;
  for (const PushPiece& piece : CutPush(Parts(), kNumElems, max_elems)) {
    EXPECT_EQ(piece.parts.size(), 1u);
    const PushedPart& part = piece.parts.front();
    EXPECT_EQ(part.first_elem, piece.first_elem);
    EXPECT_EQ(part.num_elems, piece.num_elems);
    cuts.push_back({part.use.blob, part.use.use, part.chunks, part.first_elem, part.num_elems});
  }
  return cuts;
}

TEST(PushPiecesTest, WhatFitsLeavesWhole) {
  const std::vector<PushPiece> pieces = CutPush(Parts(), kNumElems, kNumElems);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].first_elem, 0);
  EXPECT_EQ(pieces[0].num_elems, kNumElems);
  ASSERT_EQ(pieces[0].parts.size(), 2u);
  EXPECT_EQ(pieces[0].parts[0].chunks, (ChunkRange{0, 3}));
  EXPECT_EQ(pieces[0].parts[1].first_elem, 2 * kChunkElems + 128);
}

TEST(PushPiecesTest, WhatDoesNotIsCutIntoWholeChunksOfOneBlob) {
  const Cut small = {BlobId(7), 0, {0, 1}, 2 * kChunkElems + 128, 50};
  EXPECT_EQ(CutsAt(kNumElems - 1),
            (std::vector<Cut>{
                {BlobId(4), 1, {0, 2}, 0, 2 * kChunkElems}, {BlobId(4), 1, {2, 1}, 2 * kChunkElems, 100}, small}));
  const std::vector<Cut> single = {{BlobId(4), 1, {0, 1}, 0, kChunkElems},
                                   {BlobId(4), 1, {1, 1}, kChunkElems, kChunkElems},
                                   {BlobId(4), 1, {2, 1}, 2 * kChunkElems, 100},
                                   small};
  EXPECT_EQ(CutsAt(2 * kChunkElems - 1), single);
  EXPECT_EQ(CutsAt(1), single);
}

TEST(PushPiecesTest, APartOfABlobIsCutFromItsOwnFirstChunkOn) {
  const std::vector<PushPiece> pieces = CutPush({{.use = {.blob = BlobId(1)},
                                                  .chunks = {.first = 5, .count = 3},
                                                  .first_elem = 10,
                                                  .num_elems = 2 * kChunkElems + 7}},
                                                2 * kChunkElems + 17, kChunkElems);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].parts[0].chunks, (ChunkRange{6, 1}));
  EXPECT_EQ(pieces[1].first_elem, 10 + kChunkElems);
  EXPECT_EQ(pieces[2].parts[0].chunks, (ChunkRange{7, 1}));
  EXPECT_EQ(pieces[2].num_elems, 7);
}

}  // namespace
}  // namespace eps::worker
