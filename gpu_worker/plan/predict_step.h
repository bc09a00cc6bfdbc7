#ifndef EPS_GPU_WORKER_PLAN_PREDICT_STEP_H_
#define EPS_GPU_WORKER_PLAN_PREDICT_STEP_H_

#include <vector>

#include "common/base/ids.h"
#include "gpu_worker/plan/plan_needs.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {

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
  // Its step_seconds, waits and busy_seconds are the pass's, also of one that is too long to be listed. Where preferences
  // want a pass without adapters before it (PreferenceConfig::has_reference) both are one.
  Timeline timeline;
  std::vector<RelayStep> steps;  // those that the timeline's spans are of
  double scale = 1;              // above 1: the steps are of a pass with so many times fewer micro-batches
  int group_members = 0;         // of the group that the worker is in; 0: it goes alone
};
Prediction PredictStep(const PlanRequest& request, const RelayPlan& plan, const StepOnPaper& step = {});

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PREDICT_STEP_H_
