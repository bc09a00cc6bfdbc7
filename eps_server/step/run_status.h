#ifndef EPS_SERVER_STEP_RUN_STATUS_H_
#define EPS_SERVER_STEP_RUN_STATUS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "eps_server/membership/membership.h"
#include "eps_server/step/expert_load.h"
#include "eps_server/step/step_report.h"
#include "eps_server/step/step_wait.h"

namespace eps::server {

// What happened in this sitting; never falls.
struct RunCounts {
  int64_t steps = 0;          // committed
  int64_t skipped_steps = 0;  // of these, whose gradient was not finite
  int64_t tokens = 0;         // counted in them
  double model_flops = 0;     // that their mathematics asked for
  int64_t workers_attached = 0;
  int64_t workers_lost = 0;        // that did not leave by themselves
  int64_t vnodes_redone = 0;       // that were lost with a worker or a group, and computed again since
  int64_t share_changes = 0;       // steps from which on workers have other counts of vnodes, by measured speed
  int64_t step_waits = 0;          // warnings of a step that waits too long
  int64_t versions_published = 0;  // of blobs
  int64_t passes = 0;
  double evaluation_seconds = 0;               // of evaluations that are over
  double pass_seconds = 0;                     // of all workers
  std::map<std::string, double> wait_seconds;  // of these, in which compute waited, by cause
  int64_t updated_elems = 0;                   // parameters, each once per step that updates it
  int64_t update_moved_bytes = 0;              // UpdateCounts::moved_bytes
  double update_busy_seconds = 0;              // of the optimizer's threads
  double update_held_seconds = 0;              // in which an update waited for a checkpoint to copy its blob
};

enum class RunPhase { kStarting, kWaitingForWorkers, kTraining, kFinishing, kFinished, kFailed };
// "starting", "waiting_for_workers", ... as in StatusReply.state
absl::string_view RunPhaseName(RunPhase phase);

// An evaluation that goes on.
struct EvaluationProgress {
  Version version;     // whose weights it is of
  double share = 0;    // [0, 1], of its samples
  double seconds = 0;  // that it has taken so far
};

// Everything that StatusReply needs of a run.
struct RunStatus {
  RunPhase phase = RunPhase::kStarting;
  std::string failure;
  int64_t step = 0;        // steps committed
  int64_t steps = 0;       // of the whole run
  bool evaluates = false;  // it makes none: what it begins with is evaluated, and that is all
  double loss = 0;         // last_loss, or NaN where no step has one; 0 before the first
  // Of the first and of the last committed step that counted a token, not finite where those are not; nullopt: there is
  // none, or it is not known.
  std::optional<double> first_loss, last_loss;
  double learning_rate = -1;          // of the last committed step; -1: none yet in this sitting
  double gradient_norm = -1;          // -1: none yet, or not finite
  double tokens_per_second = 0;       // over the last steps
  double model_flops_per_second = 0;  // of the same
  double eta_seconds = -1;            // evaluations still to come counted; -1: unknown, or it failed
  double seconds = 0;                 // of the steps of this sitting, not of its evaluations
  int64_t tokens = 0;                 // counted, over all sittings
  std::string counted = "tokens";     // what that and tokens_per_second count: StatusReply.counted
  int64_t parameters = 0;
  int64_t trainable_parameters = 0;  // of these; 0: nothing is trained
  int64_t model_state_bytes = 0;     // Store's sizes
  int64_t hold_bytes = 0;            // of summed gradients: EXACT clipping, FP16
  int64_t window_bytes = 0;
  int64_t window_used_bytes = 0;
  int64_t resident_bytes = 0;                   // of this process
  std::string newest_checkpoint;                // path, "" if none
  int64_t checkpoints_written = 0;              // in this sitting
  int64_t checkpoint_failures = 0;              // writes that failed, in this sitting
  std::string checkpoint_error;                 // why the newest write failed; "" if it did not
  std::map<std::string, double> wait_fraction;  // over the last steps
  int64_t device_peak_bytes = 0;                // the largest over all workers of this sitting
  int64_t device_cap_bytes = 0;                 // the same, of what they are allowed
  int most_workers = 0;                         // that were ready at once, in a step of this sitting
  std::vector<std::string> device_models;       // that it was computed with so far, over all sittings
  double predicted_step_seconds = 0;            // by the newest worker's plan (WorkerMemory); 0: not known
  double median_step_seconds = 0;               // of the last 101 steps of this sitting; 0: there are none
  int64_t skipped_steps = 0;                    // over all sittings
  double loss_scale = 1;                        // of the next step
  double last_step_seconds = 0;                 // of the last committed step of this sitting
  double step_age_seconds = 0;                  // since the last commit, or since the start
  double step_seconds = 0;                      // that the step in progress has taken so far; 0: none is
  std::optional<StepWait> step_wait;            // of a step that waits too long now
  int64_t checkpoint_step = -1;                 // of the newest one on disk; -1: none
  double checkpoint_age_seconds = 0;            // since it was written; since the start if none was in this sitting
  double checkpoint_write_seconds = 0;          // of the newest write of this sitting
  int64_t checkpoint_bytes = 0;                 // of the same
  double checkpoint_writing_seconds = 0;        // since the one being written was begun; 0 if none is
  int64_t checkpoint_writing_step = -1;         // of the same; -1: none is
  // Of each blob, in pull order: whether its version for the step after the one in progress is there.
  std::vector<bool> blobs_updated;
  int64_t blobs_summed = 0;            // of the step in progress: whose gradients are all in; frozen ones too
  bool updates_wait_for_norm = false;  // they begin once the step's norm is known: EXACT clipping, FP16
  int64_t num_blobs_pending() const { return std::count(blobs_updated.begin(), blobs_updated.end(), false); }
  int64_t waiting_offers = 0;  // contributions that wait for room in the window
  double lease_seconds = 0;
  RunCounts counts;
  std::vector<double> loss_curve;  // at most LossCurve::kMaxPoints, of this sitting and those before
  int64_t loss_curve_steps = 1;    // that each point of it stands for
  std::vector<WorkerStatus> workers;
  int workers_expected = 0;      // that the first step waits for; 0: it has begun
  double start_in_seconds = -1;  // until it begins with those that are ready; -1: it has begun, or none is ready
  std::optional<ExpertLoad> expert_load;         // of the last committed step of this sitting
  std::optional<PairOutcome> pairs;              // of the same
  std::optional<EvaluationReport> evaluation;    // the newest of this sitting
  std::optional<EvaluationProgress> evaluating;  // nullopt: none goes on
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_RUN_STATUS_H_
