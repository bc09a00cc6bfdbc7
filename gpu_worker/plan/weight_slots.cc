#include "gpu_worker/plan/weight_slots.h"

#include <algorithm>
#include <cstdint>

#include "common/base/status_macros.h"

namespace eps::worker {
namespace {

// Slots that have room for every layer.
int NumLarge(const RelayPlan& plan) {
  const bool differ = !plan.resident && plan.weight_slots.back().num_bytes < plan.weight_slots.front().num_bytes;
  return differ ? 1 : static_cast<int>(plan.weight_slots.size());
}

}  // namespace

WeightSlots::WeightSlots(const ModelSpec& model, const RelayPlan& plan, const Turns& turns, bool expands)
    : num_slots_(static_cast<int>(plan.weight_slots.size())),
      num_large_(NumLarge(plan)),
      large_(num_large_),
      small_(num_slots_ - num_large_) {
  const int64_t block_bytes = model.max_block_bytes(plan.wire);
  for (const LayerSpec& layer : model.layers) is_large_.push_back(model.wire_bytes(layer, plan.wire) > block_bytes);
  int expanded = -1;  // layer
  for (size_t t = 0; t < turns.size(); ++t) {
    const Turn& turn = turns[t];
    if (!turn.starts_visit || !turn.needs_weights()) continue;
    if (turn.kind == LayerKind::kBlock) {
      const bool is_there = expands && num_slots_ == 1 && turn.layer.value() == expanded;
      expanded = turn.layer.value();
      if (is_there) continue;
    }
    visits_.push_back(turn);
  }
  FindBlocksForLargeSlot();
}

// On the way back any block may have it. On the way there not the last ones before the head, as many as the small slots
// hold beside the depth-first blocks: the head would take the place of weights that are needed first on the way back. A
// block that is depth first never, as the head comes before it is over.
void WeightSlots::FindBlocksForLargeSlot() {
  may_take_large_.resize(visits_.size());
  bool large_follows = false;
  int blocks = 0, depth_first = 0;  // from here to that one
  for (size_t visit = visits_.size(); visit-- > 0;) {
    if (IsLarge(visit)) {
      large_follows = true;
      blocks = depth_first = 0;
    } else if (visits_[visit].depth_first) {
      ++depth_first;
    } else {
      may_take_large_[visit] = !large_follows || blocks >= num_slots_ - num_large_ - depth_first;
      ++blocks;
    }
  }
}

int WeightSlots::SlotOf(int layer) const {
  if (const int slot = large_.Find(layer); slot != SlotPool::kNone) return slot;
  const int slot = small_.Find(layer);
  return slot == SlotPool::kNone ? slot : num_large_ + slot;
}

std::vector<WeightSlots::Pull> WeightSlots::PullAhead() {
  std::vector<Pull> pulls;
  const size_t end = std::min(visits_.size(), next_ + static_cast<size_t>(num_slots_));
  for (size_t visit = next_; visit < end; ++visit) {
    if (SlotOf(LayerOf(visit)) != SlotPool::kNone) continue;
    const int slot = Take(visit);
    if (slot != SlotPool::kNone) pulls.push_back({.visit = visits_[visit], .slot = slot});
  }
  return pulls;
}

// Of a block: a small one that is empty, the large one if that is, or else the place of what is needed last.
int WeightSlots::Take(size_t visit) {
  const int layer = LayerOf(visit);
  const auto moment = static_cast<int64_t>(visit);
  const auto in_small = [&] {
    const int slot = small_.TryTake(layer, moment);
    return slot == SlotPool::kNone ? slot : num_large_ + slot;
  };
  if (num_large_ == num_slots_ || IsLarge(visit)) return large_.TryTake(layer, moment);
  if (!may_take_large_[visit] || small_.num_empty() > 0) return in_small();
  if (large_.num_empty() > 0) return large_.TryTake(layer, moment);
  const int slot = in_small();
  return slot != SlotPool::kNone ? slot : large_.TryTake(layer, moment);
}

void WeightSlots::StartVisit(const Turn& turn) {
  const bool is_next =
      next_ < visits_.size() && visits_[next_].layer == turn.layer && visits_[next_].backward == turn.backward;
  if (!is_next) return;
  const int slot = SlotOf(LayerOf(next_));
  EPS_CHECK(slot != SlotPool::kNone);
  PoolOf(slot).Pin(InPool(slot));
  ++next_;
}

void WeightSlots::EndVisit(int layer) {
  const int slot = SlotOf(layer);
  if (slot == SlotPool::kNone) return;
  SlotPool& pool = PoolOf(slot);
  pool.Unpin(InPool(slot));
  for (size_t visit = next_; visit < visits_.size(); ++visit) {
    if (LayerOf(visit) == layer) return pool.SetNextUse(InPool(slot), static_cast<int64_t>(visit));
  }
  pool.Free(InPool(slot));
}

}  // namespace eps::worker
