#ifndef EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_
#define EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/control_groups.h"

namespace eps::worker {

// How much an UpdateLoop is to go through: twice what the last-level caches of all sockets hold, as Linux lists them (a
// GiB where it does not), so that hardly any of it is still there when it comes round; but at most an eighth of
// `room_bytes`, and one window at least.
int64_t UpdateStateBytes(const TextReader& read, int64_t room_bytes);

// Stands for the daemon's updates: reads and writes what a fused AdamW does, element by element, window after window. The
// state of a model that is worth a relay is in no cache.
//
// Threads: one at a time
class UpdateLoop {
 public:
  static constexpr double kBytes = 28;        // read and written, of an element: three arrays both, one read
  static constexpr int64_t kStateBytes = 16;  // held, of an element
  static constexpr size_t kWindowElems = size_t{8} << 20;  // 128 MiB

  // threads: that share the elements of a window. state_bytes: rounded down to whole windows
  UpdateLoop(int threads, int64_t state_bytes);

  // Updates one window after the other, so many, and waits for the last. Each thread does its part of all of them: the
  // daemon's have been there long before. Cannot fail.
  absl::Status Run(int64_t times);

 private:
  void Part(size_t begin, size_t end);

  const size_t threads_, windows_;
  std::array<std::vector<float>, 4> arrays_;  // windows_ * kWindowElems each: master, first and second moment, gradient
  size_t next_ = 0;                           // window
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_
