#ifndef EPS_GPU_WORKER_PLAN_STEP_LIST_H_
#define EPS_GPU_WORKER_PLAN_STEP_LIST_H_

#include <utility>
#include <vector>

#include "gpu_worker/plan/hazards.h"
#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/turns.h"

namespace eps::worker {

// A step of one turn, whose slots are to be filled in; of its vnode, with no micro-batch; of its visit, with neither.
RelayStep StepOf(RelayStep::Kind kind, const Turn& turn);
RelayStep StepOfVnode(RelayStep::Kind kind, const Turn& turn);
RelayStep StepOfVisit(RelayStep::Kind kind, const Turn& turn);

// A schedule under way: steps in their order, each with those that it waits for.
//
// Threads: none of its own; one caller
class StepList {
 public:
  // lists: false where the order is gone through for what comes of it, and nobody asks for the steps
  explicit StepList(bool lists) : lists_(lists) {}
  StepList(const StepList&) = delete;
  StepList& operator=(const StepList&) = delete;

  void Add(RelayStep step, const Resources& reads, const Resources& writes);
  std::vector<RelayStep> Take() { return std::move(steps_); }

 private:
  const bool lists_;
  std::vector<RelayStep> steps_;
  HazardTracker hazards_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_STEP_LIST_H_
