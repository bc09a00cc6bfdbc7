#include "gpu_worker/relay/push_pieces.h"

#include <algorithm>
#include <utility>

namespace eps::worker {

std::vector<PushPiece> CutPush(std::vector<PushedPart> parts, int64_t num_elems, int64_t max_elems) {
  std::vector<PushPiece> pieces;
  if (num_elems <= max_elems) {
    pieces.push_back({.first_elem = 0, .num_elems = num_elems, .parts = std::move(parts)});
    return pieces;
  }
  const int64_t max_chunks = std::max<int64_t>(1, max_elems / kChunkElems);
  for (const PushedPart& part : parts) {
    for (int64_t done = 0; done < part.chunks.count; done += max_chunks) {
      PushedPart some = part;
      some.chunks = {.first = part.chunks.first + done, .count = std::min(max_chunks, part.chunks.count - done)};
      some.first_elem = part.first_elem + done * kChunkElems;
      some.num_elems = std::min(some.chunks.count * kChunkElems, part.num_elems - done * kChunkElems);
      pieces.push_back({.first_elem = some.first_elem, .num_elems = some.num_elems, .parts = {some}});
    }
  }
  return pieces;
}

}  // namespace eps::worker
