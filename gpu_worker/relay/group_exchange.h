#ifndef EPS_GPU_WORKER_RELAY_GROUP_EXCHANGE_H_
#define EPS_GPU_WORKER_RELAY_GROUP_EXCHANGE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/plan/group_parts.h"

namespace eps::worker {

// What GroupParts says, as addresses of this member's device.

// The members' parts of a layer's weights: each gives its own to all, and `slot` then holds the layer.
// slot: of the layer, as it is pulled; this member's own part is there. wire: precision.wire
Exchange ExchangeWeights(const GroupParts& parts, LayerId layer, Dtype wire, std::byte* slot);

// One round of a layer's gradients, with the finite flags of the nodes that travel.
// push: this member's node, the whole layer in fp32; null: it has none in this round. area: the group area, which has
// its own part of it already. flags: int32, one for each vnode of the run; those of its own node are set.
Exchange ExchangeGradients(const GroupParts& parts, LayerId layer, int round, const std::byte* push, std::byte* area,
                           std::byte* flags);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_GROUP_EXCHANGE_H_
