#ifndef EPS_CLI_WORKER_REPLACEMENTS_H_
#define EPS_CLI_WORKER_REPLACEMENTS_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace eps::cli {

// Decides when workers are started in place of some that crashed, as long as a budget lasts, and starts nothing.
//
// Threads: one
class WorkerReplacements {
 public:
  // `most`: of them, in all.
  explicit WorkerReplacements(int most) : num_left_(most) {}

  // One crashed, and wants another one in its place; beyond the budget it gets none.
  void OnCrash();
  // What the daemon said of the run, or why it said nothing, each time that it was asked. Of a run that has failed, or
  // ends, workers end too: none is replaced.
  void OnAnswer(const absl::StatusOr<proto::StatusReply>& status);
  // Whether one is to be started now, which is then taken for done. Not before kPause after the one before, so that
  // what cannot live is not started again and again at once, and not before the daemon has said since the crash that
  // the run goes on. `now`: by a MonotonicClock.
  bool TakeOne(absl::Duration now);
  // Nobody is replaced any more.
  void Stop() { num_left_ = num_wanted_ = 0; }

  bool is_pending() const { return num_wanted_ > 0; }
  int num_left() const { return num_left_; }
  // The run is being ended before its last step, as by `eps stop`.
  bool run_is_being_stopped() const { return run_is_being_stopped_; }

  static constexpr absl::Duration kPause = absl::Seconds(1);
  // Answers that failed to come, in a row, after which a daemon is taken for one that hangs. Each is waited for.
  static constexpr int kMostUnanswered = 30;

 private:
  int num_left_;
  int num_wanted_ = 0;
  int num_unanswered_ = 0;
  bool run_goes_on_ = false;  // it was said since the newest crash
  bool run_is_being_stopped_ = false;
  absl::Duration taken_at_ = -absl::InfiniteDuration();
};

}  // namespace eps::cli

#endif  // EPS_CLI_WORKER_REPLACEMENTS_H_
