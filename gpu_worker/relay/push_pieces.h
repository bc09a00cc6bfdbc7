#ifndef EPS_GPU_WORKER_RELAY_PUSH_PIECES_H_
#define EPS_GPU_WORKER_RELAY_PUSH_PIECES_H_

#include <cstdint>
#include <vector>

#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"

namespace eps::worker {

// What one contribution of a push holds, and where in the gradient that is copied out.
struct PushedPart {
  BlobUse use;
  ChunkRange chunks;  // of the blob; never empty
  int64_t first_elem = 0, num_elems = 0;
};

// What is copied out at once, and pushed when it is on the host.
struct PushPiece {
  int64_t first_elem = 0, num_elems = 0;
  std::vector<PushedPart> parts;
};

// The pieces of a gradient of num_elems that holds `parts`: one, if it has at most max_elems; else of one part each, in
// order, of as many whole chunks as max_elems holds, one at least.
std::vector<PushPiece> CutPush(std::vector<PushedPart> parts, int64_t num_elems, int64_t max_elems);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PUSH_PIECES_H_
