#include "common/base/memory_speed.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/monotonic_clock.h"
#include "common/base/thread.h"

namespace eps {
namespace {

constexpr size_t kMinBytesEach = size_t{8} << 20;

// `one` is not known to the compiler, so that every element is read and written.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)  // what chooses among them runs before the sanitizer can
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void MultiplyInPlace(float* values, size_t num_values, float one) {
  for (size_t i = 0; i < num_values; ++i) values[i] *= one;
}

double MeasureOne(size_t bytes, absl::Duration time) {
  volatile float one = 1;
  std::vector<float> values(bytes / sizeof(float), 1.0f);
  const absl::Duration start = SteadyNow();
  int64_t rounds = 0;
  absl::Duration taken;
  do {
    MultiplyInPlace(values.data(), values.size(), one);
    ++rounds;
    taken = SteadyNow() - start;
  } while (taken < time);
  return 2.0 * static_cast<double>(rounds) * static_cast<double>(values.size() * sizeof(float)) /
         absl::ToDoubleSeconds(taken);
}

}  // namespace

MemorySpeed MeasureMemorySpeed(int threads, absl::Duration time) {
  threads = std::min(threads, static_cast<int>(kMemorySpeedBytes / kMinBytesEach));
  const size_t bytes = kMemorySpeedBytes / static_cast<size_t>(threads);
  std::vector<double> speeds(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 1; i < threads; ++i) {
    absl::StatusOr<std::thread> thread =
        StartThread([&speeds, i, bytes, time] { speeds[i] = MeasureOne(bytes, time); });
    if (!thread.ok()) break;  // the system allows no more of them; what runs is measured
    running.push_back(*std::move(thread));
  }
  speeds[0] = MeasureOne(bytes, time);
  for (std::thread& thread : running) thread.join();
  return {.bytes_per_second = std::accumulate(speeds.begin(), speeds.end(), 0.0),
          .threads = static_cast<int>(running.size()) + 1};
}

}  // namespace eps
