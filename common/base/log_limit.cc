#include "common/base/log_limit.h"

namespace eps {

std::optional<int64_t> LogLimit::Count(absl::Duration now) {
  const int64_t so_far = ++so_far_;
  int64_t next_nanos = next_nanos_;
  if (absl::ToInt64Nanoseconds(now) < next_nanos) return std::nullopt;
  // Of threads that come at once one logs.
  if (!next_nanos_.compare_exchange_strong(next_nanos, absl::ToInt64Nanoseconds(now + absl::Seconds(1)))) {
    return std::nullopt;
  }
  return so_far;
}

}  // namespace eps
