#ifndef EPS_GPU_WORKER_FAULTS_RELAY_FAULTS_H_
#define EPS_GPU_WORKER_FAULTS_RELAY_FAULTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/plan/schedule.h"

namespace eps::worker {

// Makes a relay wrong without making it fail, as a mistake in its order would: for tests of what must find that. A
// resident plan, which relays nothing, stays right.
//
//   stale_weights@LAYER          on the way back, the layer's slot still holds the weights of its neighbour
//   stale_weights_forward@LAYER  the same on the way there
//   drop_micro_batch@LAYER       the gradient of the layer's first micro-batch is not added
//   swap_stash@LAYER             backward gets the inputs of the layer's first two micro-batches the wrong way round
//
// LAYER is a block's name, for instance h.1.
// Errors: INVALID_ARGUMENT another text. A layer that the model does not have changes nothing
absl::StatusOr<AlterSchedule> ParseRelayFault(const std::string& text);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_FAULTS_RELAY_FAULTS_H_
