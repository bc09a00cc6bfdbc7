#include "gpu_worker/profile/update_loop.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace eps::worker {
namespace {

// Where the system does not say: what the largest servers have.
constexpr int64_t kCacheBytes = int64_t{512} << 20;

size_t Windows(int64_t state_elems) {
  const int64_t told = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const double most_elems = 2.0 * static_cast<double>(told > 0 ? told : kCacheBytes) / UpdateLoop::kStateBytes;
  const double elems = std::min(static_cast<double>(state_elems), most_elems);
  return std::max<size_t>(1, static_cast<size_t>(elems / static_cast<double>(UpdateLoop::kWindowElems)));
}

}  // namespace

UpdateLoop::UpdateLoop(int threads, int64_t state_elems)
    : threads_(static_cast<size_t>(threads)), windows_(Windows(state_elems)) {
  for (auto& array : arrays_) array.assign(windows_ * kWindowElems, 1.0f);
}

absl::Status UpdateLoop::Run(int64_t times) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < threads_; ++t) {
    threads.emplace_back([this, t, times] {
      for (size_t i = next_; i < next_ + static_cast<size_t>(times); ++i) {
        const size_t window = i % windows_ * kWindowElems;
        Part(window + kWindowElems / threads_ * t, window + kWindowElems / threads_ * (t + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  next_ = (next_ + static_cast<size_t>(times)) % windows_;
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
