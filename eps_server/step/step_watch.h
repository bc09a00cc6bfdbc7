#ifndef EPS_SERVER_STEP_STEP_WATCH_H_
#define EPS_SERVER_STEP_STEP_WATCH_H_

#include <cstddef>
#include <deque>

#include "absl/time/time.h"

namespace eps::server {

// Says when a step has made no progress for so long that someone should be told: after max(10 s, 5 * the median of the
// last steps), as long as there is no median max(a minute, 5 * what a plan predicts), and again after twice that, four
// times, eight times, ...
//
// Threads: none of its own; the owner guards it. Time is passed in.
class StepWatch {
 public:
  // The run has moved on: a step began, its gate opened, it was committed.
  void OnProgress(absl::Duration now);
  void OnStepDone(absl::Duration step_time);
  // What a plan says that a step takes; zero: nothing.
  void Expect(absl::Duration predicted) { predicted_ = predicted; }

  // True once per wait and interval; only asked while something should be moving.
  bool IsDue(absl::Duration now);
  // Whether the first report of this wait is due, or was made.
  bool IsLate(absl::Duration now) const;
  absl::Duration Waited(absl::Duration now) const { return now - last_progress_; }

 private:
  static constexpr size_t kRecentSteps = 31;
  absl::Duration FirstReport() const;

  absl::Duration last_progress_;
  absl::Duration next_report_ = absl::ZeroDuration();  // of waiting; zero: as FirstReport says
  std::deque<absl::Duration> recent_;                  // the last steps' times
  absl::Duration predicted_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_STEP_WATCH_H_
