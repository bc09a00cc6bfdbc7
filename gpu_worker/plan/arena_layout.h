#ifndef EPS_GPU_WORKER_PLAN_ARENA_LAYOUT_H_
#define EPS_GPU_WORKER_PLAN_ARENA_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/plan/plan_needs.h"
#include "gpu_worker/plan/relay_plan.h"

namespace eps::worker {

// What the plan may choose.
struct PlanChoice {
  int64_t inner_slots = 1;
  int64_t kept_inner = 0, swapped_inner = 0;
  int64_t boundary_slots = RelayPlan::kLeastBoundarySlots;
  int weight_slots = 2;
  int gradient_slots = 1;
  int push_slots = 1;
  int depth_first_blocks = 0;
  bool keeps_logits = false;  // the head, where it would compute them twice

  friend bool operator==(const PlanChoice&, const PlanChoice&) = default;
};

// (Block, micro-batch)s of a pass whose inner activations are kept, swapped or recomputed.
int64_t InnerTotal(const PlanNeeds& needs, const PlanChoice& choice);
// What takes the least of the device with so many blocks depth first, as far as the run leaves a choice.
PlanChoice LeastChoice(const PlanNeeds& needs, int depth_first_blocks);
// The least of these: with none, unless activations must be on the device, of which depth first there are fewer.
PlanChoice LeastChoice(const PlanNeeds& needs);
// Of boundaries, beside so many blocks that are depth first.
int64_t LeastBoundarySlots(const PlanNeeds& needs, int64_t depth_first_blocks);
// The depths worth having, rising: 1, then those that make larger subtrees than the one before.
std::vector<int> UsefulGradientSlots(const PlanNeeds& needs);

// Gives every buffer its place.
RelayPlan LayArena(const PlanRequest& request, const PlanNeeds& needs, const PlanChoice& choice);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_ARENA_LAYOUT_H_
