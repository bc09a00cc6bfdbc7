#include "gpu_worker/plan/stash.h"

#include "common/base/status_macros.h"

namespace eps::worker {

int Stash::NewHostSlot(int64_t value, size_t made_at) {
  EPS_CHECK(!IsOnHost(value));
  int host = num_host_slots_;
  if (free_host_.empty()) {
    ++num_host_slots_;
  } else {
    host = free_host_.back();
    free_host_.pop_back();
  }
  on_host_[value] = {host, made_at};
  return host;
}

int Stash::HostSlot(int64_t value) {
  const auto& [host, made_at] = on_host_.at(value);
  reloaded_[made_at] = true;
  return host;
}

void Stash::FreeHostSlot(int64_t value) {
  const auto found = on_host_.find(value);
  if (found == on_host_.end()) return;
  free_host_.push_back(found->second.first);
  on_host_.erase(found);
}

void Stash::Leave(int64_t value, int slot, int64_t next_use) {
  slots_.Unpin(slot);
  if (next_use != SlotPool::kNever) return slots_.SetNextUse(slot, next_use);
  slots_.Free(slot);
  FreeHostSlot(value);
}

}  // namespace eps::worker
