#ifndef EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_
#define EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace eps::worker {

// Stands for the daemon's updates: reads and writes what a fused AdamW does, element by element.
//
// It goes from window to window through a state as large as the model's: what a cache holds of that, it holds in a step as
// well. Beyond twice the last level's cache no more of it is there, and nothing changes.
//
// Threads: one at a time
class UpdateLoop {
 public:
  static constexpr double kBytes = 28;       // read and written, of an element: three arrays both, one read
  static constexpr double kStateBytes = 16;  // held, of an element
  static constexpr size_t kWindowElems = size_t{8} << 20;  // 128 MiB

  // threads: that share the elements. state_elems: of the model
  UpdateLoop(int threads, int64_t state_elems);

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
