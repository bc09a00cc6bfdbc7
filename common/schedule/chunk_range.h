#ifndef EPS_COMMON_SCHEDULE_CHUNK_RANGE_H_
#define EPS_COMMON_SCHEDULE_CHUNK_RANGE_H_

#include <compare>
#include <cstdint>
#include <string>

namespace eps {

// A part of a blob: its chunks [first, first + count). What they are in elements: BlobSpec::part_elems.
struct ChunkRange {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool empty() const { return count <= 0; }
  bool Contains(int64_t chunk) const { return first <= chunk && chunk < end(); }
  friend auto operator<=>(const ChunkRange&, const ChunkRange&) = default;
};

// What member `rank` of `size` has of num_chunks chunks: [n * rank / size, n * (rank + 1) / size), rounded down. The
// parts of all ranks are disjoint, rise with the rank, cover all chunks, and differ by one chunk at most; with fewer
// chunks than members some are empty.
//
// num_chunks: at least 0. rank: in [0, size).
ChunkRange PartOf(int64_t num_chunks, int rank, int size);

// "chunks 2..4", "chunk 7" or "no chunks", for messages.
std::string DebugString(ChunkRange chunks);

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_CHUNK_RANGE_H_
