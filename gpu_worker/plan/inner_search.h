#ifndef EPS_GPU_WORKER_PLAN_INNER_SEARCH_H_
#define EPS_GPU_WORKER_PLAN_INNER_SEARCH_H_

#include <cstdint>
#include <vector>

#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/plan/inner_places.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {

// Which inner activations of a pass to keep, swap and recompute, given the slots there are.
struct InnerProblem {
  const ModelSpec* model = nullptr;  // these two outlive it
  const StepCosts* costs = nullptr;
  RelayPlan plan;  // laid out: `inner_slots` is what there is; `inner` says nothing yet
  PassShape pass;  // `inner` says nothing yet
  int64_t most_swapped = 0;
  InnerPolicy policy = InnerPolicy::kAuto;
  // What the search may cost: steps of all schedules that it tries; at least a few are tried. Under a microsecond each.
  int64_t most_steps = 4'000'000;

  int64_t num_slots() const { return static_cast<int64_t>(plan.inner_slots.size()); }
};

struct InnerSolution {
  std::vector<InnerPlace> places;  // by block and micro-batch, as PassShape::inner
  InnerCounts counts;
  double step_seconds = 0;  // infinite: nothing fits
  int64_t num_steps = 0;    // of all schedules that were tried
};

// Counts places up, as digits of 0, 1 and 2, from all that recompute to all that swap; false: begins again.
bool NextPlaces(std::vector<InnerPlace>& places);

// Whether the slots and the host have room for it.
bool IsFeasible(const InnerProblem& problem, const std::vector<InnerPlace>& places);
// The step with these places, by simulation.
double StepSecondsWith(const InnerProblem& problem, const std::vector<InnerPlace>& places);

// Of so many places every way is tried, of so many each place and each pair, as far as `most_steps` reaches.
inline constexpr int64_t kMostPlacesOfAll = 6, kMostPlacesOneByOne = 12;

// The best that is found: over how many are kept and how many of the others are swapped, spread evenly (SpreadInner);
// where they are few, over the places one by one and in pairs, until none of these changes helps; where they are fewer,
// over all. inner_search_test holds it within 2% of the best of all; docs/planning.md has what was seen.
InnerSolution SearchInner(const InnerProblem& problem);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_INNER_SEARCH_H_
