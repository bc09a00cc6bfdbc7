#include "gpu_worker/profile/update_loop.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/control_groups.h"
#include "common/base/status_macros.h"

namespace eps::worker {
namespace {

constexpr int64_t kWindowBytes = static_cast<int64_t>(UpdateLoop::kWindowElems) * UpdateLoop::kStateBytes;
constexpr int64_t kLeastTimesCaches = 2, kTimesCaches = 6;
constexpr int64_t kEnoughBytes = int64_t{2} << 30;

// "491520K"; 0: it is not that.
int64_t CacheBytesOf(absl::string_view size) {
  size = absl::StripAsciiWhitespace(size);
  int64_t kib = 0;
  return absl::ConsumeSuffix(&size, "K") && absl::SimpleAtoi(size, &kib) && kib > 0 ? kib * 1024 : 0;
}

// Of all caches of the third level, each counted once; 0: none is listed.
int64_t LastCacheBytes(const TextReader& read) {
  std::set<std::string> seen;
  int64_t sum = 0;
  for (int cpu = 0;; ++cpu) {
    const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/cache/index3/");
    const std::optional<std::string> shared = read(folder + "shared_cpu_list"), size = read(folder + "size");
    if (!shared.has_value() || !size.has_value()) return sum;
    if (seen.insert(*shared).second) sum += CacheBytesOf(*size);
  }
}

}  // namespace

int64_t UpdateStateBytes(const TextReader& read, int64_t room_bytes) {
  const int64_t caches = LastCacheBytes(read);
  const int64_t wanted =
      caches > 0 ? std::max(kLeastTimesCaches * caches, std::min(kTimesCaches * caches, kEnoughBytes)) : kEnoughBytes;
  return std::max(kWindowBytes, std::min(wanted, room_bytes / 8));
}

absl::StatusOr<UpdateLoop> UpdateLoop::New(int threads, int64_t state_bytes) {
  const int64_t windows = std::max<int64_t>(1, state_bytes / kWindowBytes);
  EPS_ASSIGN_OR_RETURN(AnonymousMemory state, AnonymousMemory::Map(windows * kWindowBytes, "a loop of updates"));
  state.Populate();
  return UpdateLoop(threads, static_cast<size_t>(windows), std::move(state));
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
  float *master = Array(0), *first = Array(1), *second = Array(2);
  const float* gradient = Array(3);
  for (size_t i = begin; i < end; ++i) {
    first[i] = 0.9f * first[i] + 0.1f * gradient[i];
    second[i] = 0.95f * second[i] + 0.05f * gradient[i] * gradient[i];
    master[i] -= 1e-4f * first[i];
  }
}

}  // namespace eps::worker
