#ifndef EPS_GPU_WORKER_PLAN_STASH_H_
#define EPS_GPU_WORKER_PLAN_STASH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gpu_worker/plan/slot_pool.h"

namespace eps::worker {

// The moments, as of Turns, at which values were made that came to be loaded again: no other need be stored.
using Reloaded = std::vector<bool>;

// Activations of one kind (boundaries and gradients under way, or inner activations): in slots of the device, on the
// host, or both. What leaves its slot can come back only if it was stored when it was made. Which do is known once a
// schedule was built that stores all of them; a second build, told of it, ends in the same slots and stores those
// alone.
//
// Threads: none of its own; one caller
class Stash {
 public:
  // reloaded: null: everything is stored; else of a build before this one, which outlives this
  Stash(int num_slots, size_t num_turns, const Reloaded* reloaded)
      : slots_(num_slots), reloaded_before_(reloaded), reloaded_(num_turns) {}

  SlotPool& slots() { return slots_; }

  // Whether what is made at that moment goes to the host as well.
  bool Stores(size_t made_at) const { return reloaded_before_ == nullptr || (*reloaded_before_)[made_at]; }
  // A place on the host, for a value that has none. Places are taken again, the one that was freed last first.
  int NewHostSlot(int64_t value, size_t made_at);
  bool IsOnHost(int64_t value) const { return on_host_.contains(value); }
  // Of a value that is there, and is being loaded.
  int HostSlot(int64_t value);
  // If it is there.
  void FreeHostSlot(int64_t value);
  // A turn that used a value leaves it in its slot, or empties the slot where nobody needs it again (SlotPool::kNever).
  void Leave(int64_t value, int slot, int64_t next_use);

  // What came back, and how many places on the host there are.
  const Reloaded& reloaded() const { return reloaded_; }
  int num_host_slots() const { return num_host_slots_; }

 private:
  SlotPool slots_;
  const Reloaded* const reloaded_before_;
  Reloaded reloaded_;
  std::map<int64_t, std::pair<int, size_t>> on_host_;  // by value: host slot, and when it was made
  std::vector<int> free_host_;
  int num_host_slots_ = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_STASH_H_
