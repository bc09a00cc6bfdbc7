#ifndef EPS_GPU_WORKER_PLAN_REDUCED_PASS_H_
#define EPS_GPU_WORKER_PLAN_REDUCED_PASS_H_

#include <cstdint>

#include "gpu_worker/plan/pass_shape.h"
#include "gpu_worker/plan/plan_needs.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// The largest pass of the run that a worker may have, with all layers.
PassShape LargestPass(const PlanRequest& request, const PlanNeeds& needs);

// A pass with fewer micro-batches, which are alike, and slots in proportion, so that a long one can be simulated; the
// pass itself, unless it is long (16,384 turns).
struct ReducedPass {
  PassShape pass;
  RelayPlan plan;
  double scale = 1;  // micro-batches of the pass itself for each of this one

  // Of so many slots, inner activations or rounds of the pass itself.
  int64_t Scaled(int64_t count) const;
};
ReducedPass Reduce(const PassShape& pass, const RelayPlan& plan, const PlanNeeds& needs);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_REDUCED_PASS_H_
