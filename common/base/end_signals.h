#ifndef EPS_COMMON_BASE_END_SIGNALS_H_
#define EPS_COMMON_BASE_END_SIGNALS_H_

#include <utility>

#include "absl/time/time.h"
#include "common/base/monotonic_clock.h"

namespace eps {

// What SIGINT, SIGTERM and SIGHUP ask of a program: the first one to end in order, a second one to end at once. What
// comes within kRepeat of the first is the same signal: `timeout` signals a process and then its group, and a service
// manager all processes of a group, of which `eps train` passes its own on. SIGHUP says that whoever started us is gone,
// once for each of its threads: it is never a second one.
//
// Threads: one at a time
class EndSignals {
 public:
  static constexpr absl::Duration kRepeat = absl::Seconds(1);
  enum class Meaning { kEndInOrder, kNothingNew, kEndAtOnce };

  explicit EndSignals(MonotonicClock clock = SteadyClock()) : clock_(std::move(clock)) {}

  Meaning OnSignal(int number);
  int first() const { return first_; }  // 0: none came

 private:
  MonotonicClock clock_;
  int first_ = 0;
  absl::Duration first_at_;
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_END_SIGNALS_H_
