#ifndef EPS_GPU_WORKER_RELAY_STAGE_TOKENS_H_
#define EPS_GPU_WORKER_RELAY_STAGE_TOKENS_H_

#include "absl/types/span.h"
#include "common/schedule/vnode_batch.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/relay/pass_memory.h"

namespace eps::worker {

// Puts what the pass's steps load (kLoadTokens) where the device copies it from, as the assignment's own memory is the
// caller's: ids, labels, types, and of packed documents where they begin and end, as LayerShape has them.
// batches: one per vnode of the pass, that CheckAssignment has looked at. shape: of one micro-batch.
void StageTokens(absl::Span<const RelayStep> steps, absl::Span<const VnodeBatch> batches, const LayerShape& shape,
                 int micro_batches, const PassMemory& memory);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_STAGE_TOKENS_H_
