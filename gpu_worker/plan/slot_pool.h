#ifndef EPS_GPU_WORKER_PLAN_SLOT_POOL_H_
#define EPS_GPU_WORKER_PLAN_SLOT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace eps::worker {

// Equal slots that hold values in turn, where it is known beforehand when each value is needed: a value that has to
// leave is the one that is needed last (Belady's rule), so no other order brings fewer values back.
//
// Moments are numbers that rise; a value is whatever number the caller gives it. What is in a slot and what left it is
// all that the pool knows: copies are the caller's.
//
// Threads: none of its own; one caller
class SlotPool {
 public:
  static constexpr int kNone = -1;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  explicit SlotPool(int num_slots);

  int Find(int64_t value) const;  // its slot; kNone: it is in none
  // A slot for a value that is in none: the empty one that was freed longest ago, so that what used it last is over;
  // else that of the value needed last, which leaves. At least one slot is not pinned.
  int Take(int64_t value, int64_t next_use);
  // As Take, but kNone rather than making a value leave that is needed before this one.
  int TryTake(int64_t value, int64_t next_use);
  int num_empty() const { return static_cast<int>(empty_.size()); }

  // What is pinned does not leave. A slot may be pinned twice.
  void Pin(int slot);
  void Unpin(int slot);
  // Its value is needed next then.
  void SetNextUse(int slot, int64_t next_use);
  // Its value is needed no more.
  void Free(int slot);

 private:
  struct Slot {
    bool is_empty = true;
    int64_t value = 0;
    int64_t next_use = kNever;
    int pins = 0;
  };
  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  void Fill(int slot, int64_t value, int64_t next_use);

  std::vector<Slot> slots_;
  std::deque<int> empty_;                        // in the order in which they were freed
  std::map<int64_t, int> slot_of_;               // by value
  std::set<std::pair<int64_t, int>> may_leave_;  // (next use, slot) of values that are not pinned
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_SLOT_POOL_H_
