#ifndef EPS_SERVER_AGGREGATION_WINDOW_SIZE_H_
#define EPS_SERVER_AGGREGATION_WINDOW_SIZE_H_

#include <cstdint>

#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"

namespace eps::server {

// Bytes of gradients in flight that the daemon holds, unless told otherwise, where `workers` of them have as many of the
// virtual nodes each. Two layers, one that is being updated and one that is coming in, and each with all that is pushed
// of it (PushedNodes). What a blob that several layers use, as embedding and head a token table, has of all but the first
// waits for that one, and is there as well. At least 4 * the largest blob that is trained, in fp32: about what two workers
// come to.
//
// gradients: of single virtual nodes
int64_t DefaultWindowBytes(const ModelSpec& model, int virtual_nodes, Dtype gradients, int workers);

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_WINDOW_SIZE_H_
