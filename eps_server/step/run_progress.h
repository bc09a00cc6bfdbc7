#ifndef EPS_SERVER_STEP_RUN_PROGRESS_H_
#define EPS_SERVER_STEP_RUN_PROGRESS_H_

#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "common/checkpoint/run_state.h"
#include "eps_server/step/loss_curve.h"
#include "eps_server/step/pass_totals.h"
#include "eps_server/step/run_status.h"
#include "eps_server/step/step_report.h"

namespace eps::server {

// What the committed steps of a run add up to, and how fast they go.
//
// Threads: none of its own; the owner guards it. Time is passed in.
class RunProgress {
 public:
  // `state` is what a checkpoint told, or that of a new run.
  RunProgress(RunState state, absl::Duration now);

  // The next step, state().version, is committed.
  void Commit(const StepReport& report, absl::Duration now);

  const RunState& state() const { return state_; }
  absl::Duration last_commit() const { return last_commit_; }  // or the start
  // The last steps, whose gradient was not finite; those before a resume count.
  int skipped_in_a_row() const { return skipped_in_a_row_; }
  // Whether so many were skipped that the run does not come back. A loss scale that is still being looked for halves with
  // each of them: one above 1 is not to blame the run for. A resumed run is to show it once more: by a step of this sitting.
  bool has_diverged() const {
    return num_steps_ > 0 && skipped_in_a_row_ >= kMaxSkippedInARow && last_.loss_scale <= 1;
  }

  // Sets what RunStatus says of steps, losses, speed, waits and time, evaluations apart; `end` steps are to be done in
  // all. waited: of a step that takes longer than steps do (StepWatch::IsLate), how long it has taken so far, which counts
  // among the last ones; else zero.
  void Fill(RunStatus& status, int64_t end, absl::Duration now, absl::Duration waited = absl::ZeroDuration()) const;

 private:
  static constexpr int kMaxSkippedInARow = 20;

  struct Pace {
    double seconds = 0;
    int64_t tokens = 0;
    double model_flops = 0;
    PassTotals passes;
  };

  RunState state_;
  LossCurve loss_curve_;
  StepReport last_;
  std::deque<Pace> recent_;          // the last steps, kRecentSteps of them at most
  std::deque<double> step_seconds_;  // kMedianSteps
  // Of this sitting.
  double seconds_ = 0, model_flops_ = 0;
  int64_t num_steps_ = 0, num_tokens_ = 0, num_skipped_ = 0;
  absl::Duration last_commit_;
  int skipped_in_a_row_ = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_RUN_PROGRESS_H_
