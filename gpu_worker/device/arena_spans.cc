#include "gpu_worker/device/arena_spans.h"

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

absl::Status ArenaSpans::Claim(ArenaSpan span) {
  if (span.offset_bytes % kArenaAlignBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("arena offset ", span.offset_bytes, " is not a multiple of ", kArenaAlignBytes));
  }
  if (span.offset_bytes < 0 || span.num_bytes < 0 || span.offset_bytes > arena_bytes_ ||
      span.num_bytes > arena_bytes_ - span.offset_bytes) {
    return absl::OutOfRangeError(absl::StrCat("span of ", span.num_bytes, " bytes at ", span.offset_bytes,
                                              " is beyond the arena's ", arena_bytes_, " bytes"));
  }
  int64_t mark = high_water_bytes_.load(std::memory_order_relaxed);
  while (mark < span.end_bytes() && !high_water_bytes_.compare_exchange_weak(mark, span.end_bytes())) {
  }
  return absl::OkStatus();
}

}  // namespace eps::worker
