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
// Threads: one at a time
class UpdateLoop {
 public:
  explicit UpdateLoop(int threads);                  // that share the elements
  static constexpr double kBytes = 28;               // read and written, of an element: three arrays both, one read
  static constexpr size_t kElems = size_t{8} << 20;  // four arrays, 128 MiB: beyond caches

  // Updates all so many times, and waits for the last. Each thread does its part so many times: the daemon's have been
  // there long before. Cannot fail.
  absl::Status Run(int64_t times);

 private:
  void Part(size_t begin, size_t end);

  const size_t threads_;
  std::array<std::vector<float>, 4> arrays_;  // kElems each: master, first and second moment, gradient
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_UPDATE_LOOP_H_
