#include "common/base/memory_speed.h"

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace eps {
namespace {

// `one` is not known to the compiler, so that every element is read and written.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void MultiplyInPlace(float* values, size_t num_values, float one) {
  for (size_t i = 0; i < num_values; ++i) values[i] *= one;
}

double MeasureOne(size_t bytes, absl::Duration time) {
  volatile float one = 1;
  std::vector<float> values(bytes / sizeof(float), 1.0f);
  const absl::Time start = absl::Now();
  int64_t rounds = 0;
  absl::Duration taken;
  do {
    MultiplyInPlace(values.data(), values.size(), one);
    ++rounds;
    taken = absl::Now() - start;
  } while (taken < time);
  return 2.0 * static_cast<double>(rounds) * static_cast<double>(values.size() * sizeof(float)) /
         absl::ToDoubleSeconds(taken);
}

}  // namespace

double MeasureMemoryBytesPerSecond(int threads, size_t bytes, absl::Duration time) {
  std::vector<double> speeds(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (double& speed : speeds) running.emplace_back([&speed, bytes, time] { speed = MeasureOne(bytes, time); });
  for (std::thread& thread : running) thread.join();
  return std::accumulate(speeds.begin(), speeds.end(), 0.0);
}

}  // namespace eps
