#ifndef EPS_SERVER_STEP_COORDINATOR_H_
#define EPS_SERVER_STEP_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/monotonic_clock.h"
#include "common/choices/choices.h"
#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/telemetry/trace_log.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/data/step_data.h"
#include "eps_server/membership/membership.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/step/run_status.h"
#include "eps_server/step/step_report.h"
#include "eps_server/store/store.h"

namespace eps::server {

// The life of a run's steps: who computes what, when a step may begin (the gate), when it is done
// (the commit), when a checkpoint is taken, and what happens when a worker is lost. The only class
// that the service talks to for control; gradients go to aggregator().
//
// The gate: version s + 1 of the first layer's blobs, and of every frozen blob, is published only when all
// contributions and records of step s are in. Every other blob is published as soon as it is made. A step commits when
// every blob is at s + 1 and every record is in; the next step may be open by then.
//
// A worker that is lost gives its vnodes whose record or contributions are not all in to the ready ones, in the same
// step. Workers may be in groups, which push sums of all their vnodes: when one is over, the vnodes of all its members
// are given out anew, to each alone, and the next step forms a new one.
//
// A version that is due is evaluated once its step is committed, by every worker alone, and the next step begins when
// that is done: nobody reads weights of a version that is being replaced. In a resumed run that holds for the version
// that it begins with, too.
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
    std::vector<StepObserver*> observers;               // each is told of every step, in this order
    ChunkWitness* witness = nullptr;                    // of the optimizer; null: none
    TraceLog* trace = nullptr;                          // the optimizer's; null: none
    std::unique_ptr<StepData> data;                     // may be null with most_steps: 0
    std::unique_ptr<EvaluationData> evaluation_data;    // where run->evaluation.is_on(), and only there
    RunState resume;                                    // default for a new run
    int expected_workers = 1;                           // the first step waits until so many are ready
    absl::Duration expect_timeout = absl::Seconds(60);  // then it goes with those it has, if any
    absl::Duration lease = absl::Seconds(10);
    int threads = 1;           // of the optimizer
    int64_t window_bytes = 0;  // of contributions; 0: DefaultWindowBytes of one worker
    // The run ends when so many are committed, if it has more. With 0 it ends once the version that it begins with is
    // evaluated, if that is due, and makes no checkpoint.
    std::optional<int64_t> most_steps = std::nullopt;
    MonotonicClock clock = SteadyClock();
  };
  // Publishes resume.version of every blob and starts. A run that is done already is kFinished at once.
  // Errors: INVALID_ARGUMENT expected_workers, lease or threads not positive; relay.device_models: ONE, and the run was
  //         computed with several · DATA_LOSS state.updates does not fit the model · UpdateEngine's and Aggregator's
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
  // What holds for a device model, in the whole run and all of its checkpoints; empty: nothing yet.
  virtual Choices HeldChoices(const std::string& device_model) const = 0;
  // A worker would choose these for its device model; returned are those that hold, which it follows or leaves.
  // Errors also: DeviceChoices::Offer's
  virtual absl::StatusOr<Choices> OfferChoices(WorkerId worker, Choices offered) = 0;
  // It can run. The first assignment follows.
  virtual absl::Status Ready(WorkerId worker, WorkerMemory memory) = 0;
  // An assignment of `step` was computed. Records already counted are dropped, those of an older step too.
  // Errors: INVALID_ARGUMENT naming the field: a future step, a vnode that is not this worker's, counted_tokens other
  //         than the daemon's, more correct tokens than counted
  virtual absl::Status PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records, PassTiming timing) = 0;
  // The same of an assignment with an evaluation_round. Errors: Evaluation::AddRecords's
  virtual absl::Status EvaluationDone(WorkerId worker, Version version, int64_t round, std::vector<VnodeRecord> records,
                                      PassTiming timing) = 0;
  // What it says of a group (Groups). Errors also: INVALID_ARGUMENT Groups::Founded's
  virtual absl::Status ReportGroup(WorkerId worker, const GroupReport& report) = 0;
  // It wants to go: it is given nothing new, and told to finish once nobody needs what it has been given.
  virtual absl::Status Leave(WorkerId worker) = 0;
  // The same of several, whom an operator wants to go: all, or none if it fails. Errors: Membership::Drain's
  virtual absl::Status Drain(absl::Span<const WorkerId> workers) = 0;
  // The worker is gone: its stream ended, it reported a failure, it sent nonsense. Quiet for an
  // unknown one.
  virtual void Disconnect(WorkerId worker, absl::Status why) = 0;

  // Cheap, whatever the run's length.
  virtual RunStatus Status() const = 0;
  // Of each step from 0, as StepReport::loss. A copy: for the end of a run.
  virtual std::vector<double> Losses() const = 0;

  // A checkpoint after the step in progress (or of this very version if there is none); `done` gets
  // its path when it is on disk. Errors: FAILED_PRECONDITION the run has failed, or makes no step · those of
  // Checkpointer::Write
  virtual void RequestCheckpoint(std::function<void(absl::StatusOr<std::string>)> done) = 0;
  // Ends the run after the step in progress, or the round of an evaluation in progress, of which nothing is reported
  // then, with a checkpoint, but of a run without a step; returns how many steps are committed then. With nobody left
  // to finish that step the run ends before it, as long as no weight was updated in it (where updates are deferred, not
  // before all its gradients are in).
  // Errors: FAILED_PRECONDITION one was: the run fails, and the newest checkpoint stands
  virtual absl::StatusOr<int64_t> RequestStop(std::string reason) = 0;
  // Workers that are told to finish because of a stop hear that the run may go on, and so does who attaches then: what
  // stops this daemon starts it again.
  virtual void ExpectReturn() = 0;

  // Ends the run as failed now: every wait is answered with `why`.
  virtual void Fail(absl::Status why) = 0;

  // Blocks until the run is over: OK when the last step's checkpoint is on disk.
  // Errors: ABORTED a lost worker, or a group that ended, cost the step (precision.wire_versions) · else why it failed
  virtual absl::Status WaitUntilFinished() = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_COORDINATOR_H_
