#ifndef EPS_GPU_WORKER_PROFILE_SPREAD_TOKENS_H_
#define EPS_GPU_WORKER_PROFILE_SPREAD_TOKENS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// Fills a micro-batch's arrays (TokenArrays) with what costs as much as what a run reads: token ids spread over the whole
// vocabulary and types over all `num_types`, as the embedding reads and adds to one row of a table for each. Were they all 0
// one row would get everything, from caches, and one after the other. Labels are 0, and each sample is one document.
//
// Shape: `arrays` has shape.token_bytes(), aligned as PassMemory's
void FillSpreadTokens(const LayerShape& shape, int64_t num_types, absl::Span<std::byte> arrays);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_SPREAD_TOKENS_H_
