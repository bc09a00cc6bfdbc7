#ifndef EPS_SERVER_STEP_COORDINATOR_H_
#define EPS_SERVER_STEP_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/data/step_data.h"
#include "eps_server/membership/membership.h"
#include "eps_server/membership/monotonic_clock.h"
#include "eps_server/store/store.h"

namespace eps::server {

// A committed step, as metrics.jsonl and the log show it.
struct StepReport {
  StepId step;
  double loss = 0;  // nats per counted token
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping; -1 if it is not finite
  bool skipped = false;      // the gradient was not finite: nothing changed
  double seconds = 0;        // from the commit before, or from its own start if that was later
  double held_seconds = 0;   // of these, in which an update waited for a checkpoint to copy its blob
  int64_t tokens = 0;        // counted in this step
  double tokens_per_second = 0;
  std::map<std::string, double> wait_fraction;  // share of the workers' pass time in which compute waited, by cause
  int64_t device_peak_bytes = 0;                // the largest over the workers so far
  int workers = 0;                              // that are ready
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // In step order, from one thread, after the step is visible in Status(). May do I/O; a slow one
  // delays the next gate.
  virtual void OnCommit(const StepReport& report) = 0;
};

// What happened in this sitting; never falls.
struct RunCounts {
  int64_t workers_attached = 0;
  int64_t workers_lost = 0;        // that did not leave by themselves
  int64_t vnodes_redone = 0;       // of lost workers
  int64_t step_waits = 0;          // warnings of a step that waits too long
  int64_t versions_published = 0;  // of blobs
  int64_t passes = 0;
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

// Everything that StatusReply needs of a run.
struct RunStatus {
  RunPhase phase = RunPhase::kStarting;
  std::string failure;
  int64_t step = 0;   // steps committed
  int64_t steps = 0;  // of the whole run
  double loss = 0;    // of the last committed step; 0 before the first
  double learning_rate = 0;
  double gradient_norm = -1;     // -1: none yet, or not finite
  double tokens_per_second = 0;  // over the last steps
  double eta_seconds = -1;       // -1: unknown
  double seconds = 0;            // training time of this sitting
  int64_t tokens = 0;            // over all sittings
  int64_t parameters = 0;
  int64_t model_state_bytes = 0;  // Store's sizes
  int64_t hold_bytes = 0;         // of summed gradients, EXACT clipping only
  int64_t window_bytes = 0;
  int64_t window_used_bytes = 0;
  int64_t resident_bytes = 0;                   // of this process
  std::string newest_checkpoint;                // path, "" if none
  int64_t checkpoints_written = 0;              // in this sitting
  int64_t checkpoint_failures = 0;              // writes that failed, in this sitting
  std::string checkpoint_error;                 // why the newest write failed; "" if it did not
  std::map<std::string, double> wait_fraction;  // over this sitting
  int64_t device_peak_bytes = 0;                // the largest over all workers of this sitting
  int64_t skipped_steps = 0;                    // over all sittings
  double last_step_seconds = 0;                 // of the last committed step of this sitting
  double step_age_seconds = 0;                  // since the last commit, or since the start
  int64_t checkpoint_step = -1;                 // of the newest one on disk; -1: none
  double checkpoint_age_seconds = 0;            // since it was written; since the start if none was in this sitting
  double checkpoint_write_seconds = 0;          // of the newest write of this sitting
  int64_t checkpoint_bytes = 0;                 // of the same
  int64_t blobs = 0;                            // of the model
  int64_t blobs_pending = 0;                    // whose version for the step after the one in progress is not there yet
  int64_t waiting_offers = 0;                   // contributions that wait for room in the window
  double lease_seconds = 0;
  RunCounts counts;
  std::vector<double> loss_curve;  // at most LossCurve::kMaxPoints, of this sitting and those before
  int64_t loss_curve_steps = 1;    // that each point of it stands for
  std::vector<WorkerStatus> workers;
};

// The life of a run's steps: who computes what, when a step may begin (the gate), when it is done
// (the commit), when a checkpoint is taken, and what happens when a worker is lost. The only class
// that the service talks to for control; gradients go to aggregator().
//
// The gate: version s + 1 of the first layer's blobs is published only when every contribution and
// every record of step s is in; every other blob is published when it is made. A step commits when
// every blob is at s + 1 and every record is in. The next step may be open by then. A worker that
// is lost gives its vnodes whose record or contributions are not all in to the ready ones, in the
// same step.
//
// Threads: all methods are safe. Decisions are made by one thread of its own, which also calls
// channels and observers.
class Coordinator {
 public:
  struct Options {
    const ModelSpec* model = nullptr;  // these outlive the coordinator
    const RunConfig* run = nullptr;
    Store* store = nullptr;  // loaded at resume.version, nothing published
    Checkpointer* checkpointer = nullptr;
    StepObserver* observer = nullptr;  // may be null
    std::unique_ptr<StepData> data;
    RunState resume;                                    // default for a new run
    int expected_workers = 1;                           // the first step waits until so many are ready
    absl::Duration expect_timeout = absl::Seconds(60);  // then it goes with those it has, if any
    absl::Duration lease = absl::Seconds(10);
    int threads = 1;           // of the optimizer
    int64_t window_bytes = 0;  // of contributions; 0: DefaultWindowBytes
    MonotonicClock clock = SteadyClock();
  };
  // Publishes resume.version of every blob and starts. A run that is done already is kFinished at
  // once. Errors: UpdateEngine's and Aggregator's · INVALID_ARGUMENT expected_workers or lease not
  // positive
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options);
  virtual ~Coordinator() = default;

  // Where contributions go. Lives as long as the coordinator.
  virtual Aggregator& aggregator() = 0;
  virtual absl::Duration lease() const = 0;

  // In place of Options::expected_workers; no effect once the first step has begun.
  // Errors: INVALID_ARGUMENT below 1
  virtual absl::Status ExpectWorkers(int workers) = 0;

  // A worker introduces itself; its lease starts.
  // Errors: INVALID_ARGUMENT naming the field · FAILED_PRECONDITION the run is over
  virtual absl::StatusOr<WorkerId> Attach(WorkerInfo info) = 0;
  // Its event stream is open. Errors (also of the calls below): NOT_FOUND unknown or lost worker ·
  // FAILED_PRECONDITION it is connected already
  virtual absl::Status Connect(WorkerId worker, std::shared_ptr<WorkerChannel> channel) = 0;
  virtual absl::Status Heartbeat(WorkerId worker) = 0;
  // It can run. The first assignment follows.
  virtual absl::Status Ready(WorkerId worker, WorkerMemory memory) = 0;
  // An assignment of `step` was computed. Records already counted are dropped, those of an older
  // step too. Errors: INVALID_ARGUMENT naming the field: a future step, a vnode that is not this
  // worker's, counted_tokens other
  //   than the daemon's
  virtual absl::Status PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records, PassTiming timing) = 0;
  // The worker is gone: its stream ended, it reported a failure, it sent nonsense. Quiet for an
  // unknown one.
  virtual void Disconnect(WorkerId worker, absl::Status why) = 0;

  // Cheap, whatever the run's length.
  virtual RunStatus Status() const = 0;
  // Of each step from 0, nats per counted token. A copy: for the end of a run.
  virtual std::vector<double> Losses() const = 0;

  // A checkpoint after the step in progress (or of this very version if there is none); `done` gets
  // its path when it is on disk. Errors: FAILED_PRECONDITION the run has failed · those of
  // Checkpointer::Write
  virtual void RequestCheckpoint(std::function<void(absl::StatusOr<std::string>)> done) = 0;
  // Ends the run after the step in progress, with a checkpoint; returns how many steps are
  // committed then. If nobody is left to finish that step, the run fails: the newest checkpoint
  // stands.
  virtual int64_t RequestStop(std::string reason) = 0;

  // Ends the run as failed now: every wait is answered with `why`.
  virtual void Fail(absl::Status why) = 0;

  // Blocks until the run is over: OK when the last step's checkpoint is on disk.
  virtual absl::Status WaitUntilFinished() = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_COORDINATOR_H_
