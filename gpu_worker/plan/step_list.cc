#include "gpu_worker/plan/step_list.h"

#include <cstddef>

namespace eps::worker {

RelayStep StepOf(RelayStep::Kind kind, const Turn& turn) {
  RelayStep step;
  step.kind = kind;
  step.layer = turn.layer;
  step.backward = turn.backward;
  step.vnode = turn.vnode;
  step.micro_batch = turn.micro_batch;
  return step;
}

RelayStep StepOfVnode(RelayStep::Kind kind, const Turn& turn) {
  RelayStep step = StepOf(kind, turn);
  step.micro_batch = -1;
  return step;
}

RelayStep StepOfVisit(RelayStep::Kind kind, const Turn& turn) {
  RelayStep step = StepOfVnode(kind, turn);
  step.vnode = -1;
  return step;
}

void StepList::Add(RelayStep step, const Resources& reads, const Resources& writes) {
  if (!lists_) return;
  step.waits_for = hazards_.Add(step.stream(), reads, writes);
  for (const int other : step.waits_for) steps_[static_cast<size_t>(other)].signals = true;
  steps_.push_back(std::move(step));
}

}  // namespace eps::worker
