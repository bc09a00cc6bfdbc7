#include "gpu_worker/plan/weight_slots.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace eps::worker {
namespace {

// Slots that have room for every layer.
int NumLarge(const RelayPlan& plan) {
  const bool differ = !plan.resident && plan.weight_slots.back().num_bytes < plan.weight_slots.front().num_bytes;
  return differ ? 1 : static_cast<int>(plan.weight_slots.size());
}

}  // namespace

WeightSlots::WeightSlots(const ModelSpec& model, const RelayPlan& plan, const std::vector<Turn>& visits)
    : visits_(visits),
      num_slots_(static_cast<int>(plan.weight_slots.size())),
      num_large_(NumLarge(plan)),
      large_(num_large_),
      small_(num_slots_ - num_large_) {
  for (const LayerSpec& layer : model.layers) is_large_.push_back(layer.num_elems > model.max_block_elems());
  may_take_large_.resize(visits_.size());
  bool is_large_ahead = false;
  int blocks = 0, depth_first = 0;  // before that
  for (size_t visit = visits_.size(); visit-- > 0;) {
    if (IsLarge(LayerOf(visit))) {
      is_large_ahead = true, blocks = depth_first = 0;
    } else if (visits_[visit].depth_first) {
      ++depth_first;
    } else {
      may_take_large_[visit] = !is_large_ahead || blocks >= num_slots_ - num_large_ - depth_first;
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
    if (slot != SlotPool::kNone) pulls.push_back({.visit = visit, .slot = slot});
  }
  return pulls;
}

// One that is empty, or whose layer is needed later than this one.
int WeightSlots::Take(size_t visit) {
  const int layer = LayerOf(visit);
  const auto moment = static_cast<int64_t>(visit);
  const auto in_small = [&] {
    const int slot = small_.TryTake(layer, moment);
    return slot == SlotPool::kNone ? slot : num_large_ + slot;
  };
  if (num_large_ == num_slots_ || IsLarge(layer)) return large_.TryTake(layer, moment);
  if (!may_take_large_[visit] || small_.num_empty() > 0) return in_small();
  if (large_.num_empty() > 0) return large_.TryTake(layer, moment);
  const int slot = in_small();
  return slot != SlotPool::kNone ? slot : large_.TryTake(layer, moment);
}

void WeightSlots::Start() {
  const int slot = SlotOf(LayerOf(next_));
  EPS_CHECK(slot != SlotPool::kNone);
  PoolOf(slot).Pin(InPool(slot));
  ++next_;
}

void WeightSlots::End(int layer) {
  const int slot = SlotOf(layer);
  SlotPool& pool = PoolOf(slot);
  pool.Unpin(InPool(slot));
  for (size_t visit = next_; visit < visits_.size(); ++visit) {
    if (LayerOf(visit) == layer) return pool.SetNextUse(InPool(slot), static_cast<int64_t>(visit));
  }
  pool.Free(InPool(slot));
}

}  // namespace eps::worker
