#ifndef EPS_SERVER_OPTIMIZER_NONFINITE_GRADIENT_H_
#define EPS_SERVER_OPTIMIZER_NONFINITE_GRADIENT_H_

#include <cstdint>
#include <string>

#include "common/model/model_spec.h"
#include "eps_server/optimizer/chunk_gradient.h"

namespace eps::server {

// Where a chunk's gradient, or its sum, is not finite, as closely as that can be told: "layer h.2,
// transformer.h.2.mlp.c_fc.weight, vnode 5", or less of it.
std::string DescribeNonFinite(const BlobSpec& blob, int64_t chunk, const ChunkGradient& gradient);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_NONFINITE_GRADIENT_H_
