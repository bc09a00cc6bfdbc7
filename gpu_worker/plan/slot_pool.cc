#include "gpu_worker/plan/slot_pool.h"

#include <iterator>

#include "common/base/status_macros.h"

namespace eps::worker {

SlotPool::SlotPool(int num_slots) : slots_(static_cast<size_t>(num_slots)) {
  for (int slot = 0; slot < num_slots; ++slot) empty_.push_back(slot);
}

int SlotPool::Find(int64_t value) const {
  const auto found = slot_of_.find(value);
  return found == slot_of_.end() ? kNone : found->second;
}

void SlotPool::Fill(int slot, int64_t value, int64_t next_use) {
  at(slot) = {.is_empty = false, .value = value, .next_use = next_use, .pins = 0};
  slot_of_[value] = slot;
  may_leave_.emplace(next_use, slot);
}

int SlotPool::Take(int64_t value, int64_t next_use) {
  const int slot = TryTake(value, next_use);
  if (slot != kNone) return slot;
  EPS_CHECK(!may_leave_.empty());
  const int last = std::prev(may_leave_.end())->second;
  Free(last);
  empty_.pop_back();
  Fill(last, value, next_use);
  return last;
}

int SlotPool::TryTake(int64_t value, int64_t next_use) {
  EPS_CHECK(Find(value) == kNone);
  if (empty_.empty()) {
    if (may_leave_.empty() || std::prev(may_leave_.end())->first <= next_use) return kNone;
    Free(std::prev(may_leave_.end())->second);
  }
  const int slot = empty_.front();
  empty_.pop_front();
  Fill(slot, value, next_use);
  return slot;
}

void SlotPool::Pin(int slot) {
  if (at(slot).pins++ == 0) may_leave_.erase({at(slot).next_use, slot});
}

void SlotPool::Unpin(int slot) {
  EPS_CHECK(at(slot).pins > 0);
  if (--at(slot).pins == 0) may_leave_.emplace(at(slot).next_use, slot);
}

void SlotPool::SetNextUse(int slot, int64_t next_use) {
  Slot& changed = at(slot);
  if (changed.pins == 0) {
    may_leave_.erase({changed.next_use, slot});
    may_leave_.emplace(next_use, slot);
  }
  changed.next_use = next_use;
}

void SlotPool::Free(int slot) {
  const Slot& freed = at(slot);
  EPS_CHECK(!freed.is_empty && freed.pins == 0);
  may_leave_.erase({freed.next_use, slot});
  slot_of_.erase(freed.value);
  at(slot) = Slot();
  empty_.push_back(slot);
}

}  // namespace eps::worker
