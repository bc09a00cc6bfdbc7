#ifndef EPS_GPU_WORKER_PLAN_PLANNER_H_
#define EPS_GPU_WORKER_PLAN_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {

// The plan with the shortest step that is found, by simulation with the machine's profile, among those that fit the
// cap. Searched are: which inner activations are kept, swapped and recomputed; boundaries on the device; gradient and
// push slots; how many layers are pulled ahead (weight slots); how many of the last blocks are depth first; whether the
// head keeps its logits. None of it changes a bit.
//
// Errors: RESOURCE_EXHAUSTED when nothing fits; the message holds "needs at least N bytes", the smallest cap
//         that does, and what to change (PlanRequest::suggests). Any cap >= N works · INVALID_ARGUMENT a pass beyond
//         all measure, by field
absl::StatusOr<RelayPlan> MakeRelayPlan(const PlanRequest& request);

// Whether there is one; without the search.
absl::Status CheckFits(const PlanRequest& request);

// That N. It depends on neither num_layers nor micro_batches, unless the run asks to be resident, to keep inner
// activations, to have boundaries on the device or some blocks depth first, or the host may not hold them all
// (host_stash_bytes). INT64_MAX where MakeRelayPlan says INVALID_ARGUMENT.
int64_t SmallestCapBytes(const PlanRequest& request);

// A step on paper.
//
// Workers are alike, and share the vnodes as the daemon shares them out: what is simulated is the last one, which has
// no fewer than any other, in one pass; with max_group_members above 1 as a member of its group, if a group can carry
// the step.
// Each has a device of its own, and with the `cpu` device as many cores as the profile was measured with. What they
// share is the daemon, which reads everybody's contributions, and the host's memory: copies to and from all devices
// take no more of its bandwidth than updates alone have.
struct StepOnPaper {
  std::vector<LayerId> dropped = {};  // blocks that it leaves out, rising
  int workers = 1;                    // those beyond the vnodes have nothing to do
};
struct Prediction {
  Timeline
      timeline;  // its step_seconds, waits and busy_seconds are the pass's, also of one that is too long to be listed
  std::vector<RelayStep> steps;  // those that the timeline's spans are of
  double scale = 1;              // above 1: the steps are of a pass with so many times fewer micro-batches
  int group_members = 0;         // of the group that the worker is in; 0: it goes alone
};
Prediction PredictStep(const PlanRequest& request, const RelayPlan& plan, const StepOnPaper& step = {});

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PLANNER_H_
