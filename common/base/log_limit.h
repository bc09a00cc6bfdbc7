#ifndef EPS_COMMON_BASE_LOG_LIMIT_H_
#define EPS_COMMON_BASE_LOG_LIMIT_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"

namespace eps {

// Of an event that strangers can bring about as often as they like, and that must not fill the log: at most one line a
// second, with how many there were.
//
// Threads: safe
class LogLimit {
 public:
  // One more, `now` of a MonotonicClock. How many there were so far, where that is to be logged.
  std::optional<int64_t> Count(absl::Duration now);
  int64_t so_far() const { return so_far_; }

 private:
  // Atomic, because any thread may count.
  std::atomic<int64_t> so_far_ = 0;
  std::atomic<int64_t> next_nanos_ = std::numeric_limits<int64_t>::min();  // when one is logged again
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_LOG_LIMIT_H_
