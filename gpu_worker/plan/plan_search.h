#ifndef EPS_GPU_WORKER_PLAN_PLAN_SEARCH_H_
#define EPS_GPU_WORKER_PLAN_PLAN_SEARCH_H_

#include "gpu_worker/plan/plan_needs.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// The plan with the shortest step that is found, by simulation with the machine's profile, among those that fit the
// cap. Searched are: which inner activations are kept, swapped and recomputed; boundaries on the device; gradient and
// push slots; how many layers are pulled ahead (weight slots); how many of the last blocks are depth first; whether the
// head keeps its logits. None of it changes a bit.
//
// The request's cap is one that suffices (SmallestCapBytes).
RelayPlan SearchPlan(const PlanRequest& request);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PLAN_SEARCH_H_
