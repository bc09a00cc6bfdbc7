#include "common/schedule/chunk_range.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {

ChunkRange PartOf(int64_t num_chunks, int rank, int size) {
  EPS_CHECK(num_chunks >= 0 && rank >= 0 && rank < size);
  const int64_t first = num_chunks * rank / size;
  return {.first = first, .count = num_chunks * (int64_t{rank} + 1) / size - first};
}

std::string DebugString(ChunkRange chunks) {
  if (chunks.empty()) return "no chunks";
  if (chunks.count == 1) return absl::StrCat("chunk ", chunks.first);
  return absl::StrCat("chunks ", chunks.first, "..", chunks.end() - 1);
}

}  // namespace eps
