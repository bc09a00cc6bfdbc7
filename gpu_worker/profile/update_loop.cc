#include "gpu_worker/profile/update_loop.h"

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace eps::worker {

UpdateLoop::UpdateLoop(int threads) : threads_(static_cast<size_t>(threads)) {
  for (auto& array : arrays_) array.assign(kElems, 1.0f);
}

absl::Status UpdateLoop::Run(int64_t times) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < threads_; ++t) {
    threads.emplace_back([this, t, times] {
      for (int64_t i = 0; i < times; ++i) Part(kElems / threads_ * t, kElems / threads_ * (t + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return absl::OkStatus();
}

void UpdateLoop::Part(size_t begin, size_t end) {
  float *master = arrays_[0].data(), *first = arrays_[1].data(), *second = arrays_[2].data();
  const float* gradient = arrays_[3].data();
  for (size_t i = begin; i < end; ++i) {
    first[i] = 0.9f * first[i] + 0.1f * gradient[i];
    second[i] = 0.95f * second[i] + 0.05f * gradient[i] * gradient[i];
    master[i] -= 1e-4f * first[i];
  }
}

}  // namespace eps::worker
