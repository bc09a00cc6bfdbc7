#ifndef EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_
#define EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/anonymous_memory.h"
#include "common/base/control_groups.h"

namespace eps::worker {

// How much an UpdateLoop is to go through, so that little of it is still in a cache when it comes round: six times what
// the last-level caches of all sockets hold, as Linux lists them; 2 GiB, if that is less and twice as much as they hold,
// and where none is listed; but at most an eighth of `room_bytes`, and one window at least. Caches that see the same go
// by again and again may keep a part of it: with twice what they hold updates seemed twice as fast as they were on an
// H200's host.
int64_t UpdateStateBytes(const TextReader& read, int64_t room_bytes);

// Stands for the daemon's updates: reads and writes what a fused AdamW does, element by element, window after window.
// The state of a model that is worth a relay is in no cache.
//
// Threads: one at a time
class UpdateLoop {
 public:
  static constexpr double kBytes = 28;        // read and written, of an element: three arrays both, one read
  static constexpr int64_t kStateBytes = 16;  // held, of an element
  static constexpr size_t kWindowElems = size_t{8} << 20;  // 128 MiB

  // threads: that share the elements of a window. state_bytes: rounded down to whole windows, one at least
  // Errors: RESOURCE_EXHAUSTED there is not so much
  static absl::StatusOr<UpdateLoop> New(int threads, int64_t state_bytes);

  // Updates one window after the other, so many, and waits for the last. Each thread does its part of all of them: the
  // daemon's have been there long before. Cannot fail.
  absl::Status Run(int64_t times);

 private:
  UpdateLoop(int threads, size_t windows, AnonymousMemory state)
      : threads_(static_cast<size_t>(threads)), windows_(windows), state_(std::move(state)) {}
  void Part(size_t begin, size_t end);
  // Of windows_ * kWindowElems: 0 to 3 are master, first and second moment, gradient.
  float* Array(size_t which) const { return reinterpret_cast<float*>(state_.base()) + which * windows_ * kWindowElems; }

  size_t threads_, windows_;
  AnonymousMemory state_;
  size_t next_ = 0;  // window
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_
