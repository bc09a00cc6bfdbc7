#ifndef EPS_GPU_WORKER_PLAN_TIMELINE_H_
#define EPS_GPU_WORKER_PLAN_TIMELINE_H_

#include <array>
#include <functional>
#include <vector>

#include "common/model/model_spec.h"
#include "gpu_worker/device/stream_id.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/relay_step.h"

namespace eps::worker {

// What everything in a step costs when it runs alone, in seconds.
struct StepCosts {
  std::function<double(const RelayStep&)> seconds;  // of the step's stream; a pull's: without waiting for its version
  std::vector<double> update_seconds;               // by blob; 0: frozen
  // By blob, of update_seconds: what waits for the gradients of all layers but the first that has the blob; where there
  // is no other, for that of any layer. Empty, or 0 (always where updates are held): nothing does.
  std::vector<double> early_update_seconds;
  // By blob, where updates are held until the whole step's norm is known (EXACT clipping, loss scaling): its sum is
  // made when its gradient is in, its update follows when all are, the first layer's first. Empty: updates are eager.
  std::vector<double> sum_seconds;
  // What a push adds to its layer's sum or update, where it is read.
  std::function<double(const RelayStep&)> contribution_seconds = [](const RelayStep&) { return 0.0; };
  // From the end of what a stream waits for, another stream's work or a version, until it goes on.
  double handover_seconds = 0;
  double between_steps_seconds = 0;
  Sharing sharing = kNothingShared;
};

// Seconds since the step's start; an update that began in a step before has a negative begin.
struct TimelineSpan {
  int index = 0;  // of the step in its list, or a blob
  double begin = 0, end = 0;
};

struct Timeline {
  double step_seconds = 0;            // from one step's start to the next one's, once all steps are alike
  std::vector<TimelineSpan> steps;    // in the order in which they end
  std::vector<TimelineSpan> updates;  // and sums, those that end within the step
  std::array<double, kNumWaitCauses> compute_wait_seconds = {};  // kNone: between steps
  std::array<double, kNumActivities> busy_seconds = {};

  // What more of would make the step shorter first: the activity that is busy the longest.
  Activity bound() const;
};

// Carries a schedule out on paper: each stream takes its steps in their order, a step starts when those that it waits
// for are done (a pull, when its blobs' versions are there as well), and what runs at once shares the machine as
// `sharing` says. A discrete-event simulation, of a few steps in a row, as updates reach into the next one: cost
// O(steps).
//
// One worker, which has every vnode of the step in one pass; or one of several that are alike (BesideOthers).
Timeline Simulate(const ModelSpec& model, const std::vector<RelayStep>& steps, const StepCosts& costs);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_TIMELINE_H_
