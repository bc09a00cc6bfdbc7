#ifndef EPS_GPU_WORKER_RELAY_FORWARD_WITNESS_H_
#define EPS_GPU_WORKER_RELAY_FORWARD_WITNESS_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace eps::worker {

// Sees what every layer but the head makes of every micro-batch on the way there, so that two runs can be compared.
//
// Threads: the compute stream's, one call at a time, which holds that stream up
class ForwardWitness {
 public:
  virtual ~ForwardWitness() = default;
  // vnode: of the run. output: (B, T, C) in the compute dtype; valid during the call
  virtual void OnForward(StepId step, LayerId layer, int vnode, int micro_batch,
                         absl::Span<const std::byte> output) = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_FORWARD_WITNESS_H_
