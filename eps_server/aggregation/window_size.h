#ifndef EPS_SERVER_AGGREGATION_WINDOW_SIZE_H_
#define EPS_SERVER_AGGREGATION_WINDOW_SIZE_H_

#include <algorithm>
#include <cstdint>

#include "common/model/model_spec.h"

namespace eps::server {

// Bytes of gradients in flight that the daemon holds, unless told otherwise: 4 * the largest blob
// that is trained, in fp32. That is two layers (one being updated, one coming in), each as two fp32 subtree sums or
// four 16-bit leaves.
inline int64_t DefaultWindowBytes(const ModelSpec& model) {
  int64_t largest_elems = 0;
  for (const BlobSpec& blob : model.blobs) largest_elems = std::max(largest_elems, blob.frozen ? 0 : blob.num_elems);
  return 4 * largest_elems * int64_t{sizeof(float)};
}

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_WINDOW_SIZE_H_
