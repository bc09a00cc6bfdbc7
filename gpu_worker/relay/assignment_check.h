#ifndef EPS_GPU_WORKER_RELAY_ASSIGNMENT_CHECK_H_
#define EPS_GPU_WORKER_RELAY_ASSIGNMENT_CHECK_H_

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// Whether an assignment is one of this run's: its vnodes, the layers that it drops, and of each vnode as many tokens and
// labels as the run says, types and documents where the model has them, every id within the vocabulary.
// shape: of the run's micro-batches.
// Errors: INVALID_ARGUMENT, naming vnode and token
absl::Status CheckAssignment(const Assignment& assignment, const ModelSpec& model, const RunConfig& run,
                             const LayerShape& shape);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_ASSIGNMENT_CHECK_H_
