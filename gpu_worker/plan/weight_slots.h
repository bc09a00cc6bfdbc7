#ifndef EPS_GPU_WORKER_PLAN_WEIGHT_SLOTS_H_
#define EPS_GPU_WORKER_PLAN_WEIGHT_SLOTS_H_

#include <cstddef>
#include <vector>

#include "common/model/model_spec.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/slot_pool.h"
#include "gpu_worker/plan/turns.h"

namespace eps::worker {

// Which slot the weights of each visit to a layer lie in, and when they can be pulled: as many visits ahead as there
// are slots. What is in a slot still is not pulled again, and what is needed last leaves.
//
// All slots but the first may have room for no more than a block (RelayPlan::weight_slots). Where embedding or head are
// larger, they go to the first one, and blocks only while neither needs it.
//
// A pass that expands blocks into their compute dtype has the last one so until the next block's turn comes: where the
// head takes its place, as with a single slot, its way back needs no weights, and none are brought for it. They would be
// waited for by nobody, and with one version (precision.wire_versions) be asked for when that is gone.
//
// Threads: none of its own; one caller
class WeightSlots {
 public:
  struct Pull {
    Turn visit;    // its first turn
    int slot = 0;  // of the plan's
  };

  // Of a resident plan every layer gets the slot of its place, as they are visited first in that order. `expands`:
  // PassShape's.
  WeightSlots(const ModelSpec& model, const RelayPlan& plan, const Turns& turns, bool expands);

  // What can be pulled now, in the order of visits.
  std::vector<Pull> PullAhead();
  // The visit of which `turn` is the first begins, with its weights in a slot, if it needs any: PullAhead has just said
  // so, or did before.
  void StartVisit(const Turn& turn);
  // The visit to `layer` that has begun is over.
  void EndVisit(int layer);
  int SlotOf(int layer) const;  // SlotPool::kNone: in none

 private:
  bool IsLarge(size_t visit) const { return is_large_[static_cast<size_t>(LayerOf(visit))]; }
  int LayerOf(size_t visit) const { return visits_[visit].layer.value(); }
  void FindBlocksForLargeSlot();
  int Take(size_t visit);
  // Of both pools, each by its own slots.
  SlotPool& PoolOf(int slot) { return slot < num_large_ ? large_ : small_; }
  int InPool(int slot) const { return slot < num_large_ ? slot : slot - num_large_; }

  std::vector<Turn> visits_;    // that need weights: the first turn of each
  std::vector<bool> is_large_;  // by layer: only the first slot has room for it
  const int num_slots_, num_large_;
  std::vector<bool> may_take_large_;  // by visit, of blocks
  SlotPool large_, small_;            // by layer; moments are visits
  size_t next_ = 0;                   // visit
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_WEIGHT_SLOTS_H_
