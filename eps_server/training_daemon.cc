#include "eps_server/training_daemon.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/model_source.h"
#include "common/grpc/message_limits.h"
#include "common/grpc/thread_needs.h"
#include "common/run_folder/endpoint_file.h"
#include "common/run_folder/run_folder.h"
#include "common/telemetry/trace_log.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/daemon_front.h"
#include "eps_server/daemon_identity.h"
#include "eps_server/doors.h"
#include "eps_server/loaded_run.h"
#include "eps_server/optimizer/divergence.h"
#include "eps_server/out_folder.h"
#include "eps_server/report/digest_log.h"
#include "eps_server/report/failure.h"
#include "eps_server/report/loss_svg.h"
#include "eps_server/report/metrics_log.h"
#include "eps_server/report/step_trace.h"
#include "eps_server/report/summary.h"
#include "eps_server/report/tensorboard_log.h"
#include "eps_server/service/control_service.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/service/traffic.h"
#include "eps_server/service/training_host.h"
#include "eps_server/shared_memory_door.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/step_report.h"
#include "eps_server/telemetry/daemon_view.h"

namespace eps::server {
namespace {

// Workers that were told to finish leave within this time; then their streams are cut.
constexpr absl::Duration kLeaveTime = absl::Seconds(5);
// That the writing of a checkpoint has to come to its end when the run has failed; then it is given up.
constexpr absl::Duration kLastWriteTime = absl::Seconds(2);

absl::Status CheckOut(const RunFolder& folder, bool resume) {
  std::error_code ignored;
  if (resume && !std::filesystem::exists(folder.path(), ignored)) {
    return absl::NotFoundError(absl::StrCat("--resume: there is no folder ", folder.path()));
  }
  return resume ? folder.CheckCanGoOn() : folder.CheckHoldsNoRun();
}

class TrainingDaemon final : public Daemon {
 public:
  TrainingDaemon(const DaemonOptions& options, ListenAddress listen, LongWork& work)
      : options_(options),
        listen_(std::move(listen)),
        work_(work),
        identity_(NewDaemonIdentity(options.out)),
        folder_(options.out),
        out_(options.out) {}

  ~TrainingDaemon() override { Close(absl::ZeroDuration()); }

  // Reads and checks; leaves nothing on disk, but for the tokens of data that has none yet.
  absl::Status Load() {
    EPS_ASSIGN_OR_RETURN(OpenedDoors doors, OpenDoors(listen_, options_));
    keys_ = std::move(doors.keys);
    EPS_RETURN_IF_ERROR(out_.Claim());
    EPS_RETURN_IF_ERROR(CheckOut(folder_, options_.resume));
    EPS_RETURN_IF_ERROR(ReadRun(options_, folder_, run_));
    EPS_ASSIGN_OR_RETURN(max_message_bytes_, MaxControlMessageBytes(run_.config));
    // What comes now may take long.
    EPS_RETURN_IF_ERROR(out_.Make());
    EPS_ASSIGN_OR_RETURN(front_, DaemonFront::Open(options_, listen_, std::move(doors.rpc), identity_, &work_));
    return LoadRun(
        options_, folder_, [this] { return out_.Reclaim(); }, work_, run_);
  }

  // Makes everything that writes into the folder, which stays from now on.
  absl::Status Open() {
    EPS_RETURN_IF_ERROR(work_.Add(0));  // unless it was given up
    work_.Begin("opening the run");
    out_.Keep();
    folder_.RemoveHalfWritten();
    EPS_RETURN_IF_ERROR(RemoveEndpointFile(options_.out, EndpointFile::kRunning));
    // Of a former sitting: it would say that the run has ended.
    if (run_.state.version.value() < run_.config.steps) {
      EPS_RETURN_IF_ERROR(RemoveIfThere(folder_.summary()));
    }
    if (run_.source.has_value()) {
      EPS_RETURN_IF_ERROR(KeepModelSource(*std::exchange(run_.source, std::nullopt), folder_.path()));
    }
    if (run_.checkpointer == nullptr) {
      EPS_ASSIGN_OR_RETURN(run_.checkpointer, Checkpointer::Create(folder_.checkpoints().path(), run_.model,
                                                                   run_.config, [this] { return out_.Reclaim(); }));
    }
    EPS_ASSIGN_OR_RETURN(metrics_,
                         MetricsLog::Open(folder_, run_.config.evaluation.is_on(), run_.state.version.value()));
    std::vector<StepObserver*> observers = {metrics_.get()};
    if (run_.state.version.value() == 0) EPS_RETURN_IF_ERROR(TensorboardLog::RemoveFiles(folder_));
    if (options_.tensorboard) {
      EPS_ASSIGN_OR_RETURN(tensorboard_, TensorboardLog::Open(folder_, run_.state.version.value()));
      observers.push_back(tensorboard_.get());
    }
    if (!options_.digest_file.empty()) {
      EPS_ASSIGN_OR_RETURN(digests_, DigestLog::Open(options_.digest_file, &run_.model, run_.store.get()));
      observers.push_back(digests_.get());
    }
    if (!options_.trace_file.empty()) {
      EPS_ASSIGN_OR_RETURN(trace_, TraceLog::Create({.path = options_.trace_file}));
      trace_->NameProcess("daemon");
      step_trace_ = std::make_unique<StepTrace>(trace_.get());
      observers.push_back(step_trace_.get());
    }
    EPS_ASSIGN_OR_RETURN(coordinator_,
                         Coordinator::Create({.model = &run_.model,
                                              .run = &run_.config,
                                              .store = run_.store.get(),
                                              .checkpointer = run_.checkpointer.get(),
                                              .observers = std::move(observers),
                                              .witness = digests_.get(),
                                              .trace = trace_.get(),
                                              .data = std::move(run_.data),
                                              .evaluation_data = std::move(run_.evaluation_data),
                                              .resume = run_.state,
                                              .expected_workers = options_.expected_workers,
                                              .lease = options_.lease,
                                              .threads = options_.threads,
                                              .window_bytes = run_.memory.contribution_window_bytes,
                                              .most_steps = options_.evaluates() ? 0 : options_.most_steps}));
    host_ = std::make_unique<TrainingHost>(*coordinator_);
    front_->page().Show([this] { return View(); });
    return absl::OkStatus();
  }

  // A run that was killed after its last checkpoint may lack its reports: what the checkpoint knows makes them.
  absl::Status ReportIfMissing() {
    std::error_code ignored;
    if (std::filesystem::exists(folder_.summary(), ignored)) {
      ForgetFailure();
      return absl::OkStatus();
    }
    RunStatus status;
    status.step = run_.state.version.value();
    status.steps = run_.config.steps;
    status.tokens = run_.state.tokens;
    status.skipped_steps = run_.state.skipped_steps;
    status.parameters = run_.model.num_parameters();
    status.trainable_parameters = run_.model.num_trainable_parameters();
    status.model_state_bytes = run_.store->sizes().total_bytes();
    status.newest_checkpoint = run_.checkpointer->LatestPath();
    EPS_RETURN_IF_ERROR(Report(status, run_.state.losses));
    ForgetFailure();
    return absl::OkStatus();
  }

  bool finished_before() const override { return options_.resume && run_.state.version.value() >= run_.config.steps; }

  absl::Status Start() override {
    EPS_ASSIGN_OR_RETURN(shared_memory_, OpenSharedMemory(run_.config, {.incarnation = identity_.incarnation,
                                                                        .model = &run_.model,
                                                                        .store = run_.store.get(),
                                                                        .aggregator = &coordinator_->aggregator(),
                                                                        .last_version = Version(run_.config.steps),
                                                                        .copiers = CopierThreads(options_.threads),
                                                                        .traffic = &traffic_.shared_memory}));
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(NewControlService({.identity = identity_,
                                          .run_config = SerializeRunConfig(run_.config),
                                          .shared_memory_socket = SharedMemorySocket(shared_memory_),
                                          .host = host_.get(),
                                          .coordinator = coordinator_.get(),
                                          .most_workers = run_.config.batch.virtual_nodes,
                                          .keys = [keys = keys_] { return keys->state(); }}));
    services.push_back(NewDataService({.incarnation = identity_.incarnation,
                                       .model = &run_.model,
                                       .store = run_.store.get(),
                                       .aggregator = &coordinator_->aggregator(),
                                       .last_version = Version(run_.config.steps),
                                       .traffic = &traffic_.grpc}));
    is_open_ = true;
    if (absl::Status status = front_->GoOn(std::move(services), max_message_bytes_); !status.ok()) {
      // Workers may be in already: whoever waits is answered before what it waits with is gone.
      coordinator_->Fail(status);
      coordinator_->WaitUntilFinished().IgnoreError();  // that status
      return status;
    }
    ForgetFailure();
    LogInfo("daemon_listening", {{"grpc", front_->server().address()},
                                 {"metrics", front_->page().address()},
                                 {"incarnation", identity_.incarnation},
                                 {"step", run_.state.version.value()},
                                 {"steps", run_.config.steps},
                                 {"parameters", run_.model.num_parameters()},
                                 {"model_state_bytes", run_.store->sizes().total_bytes()},
                                 {"contribution_window_bytes", coordinator_->aggregator().window_bytes()}});
    return absl::OkStatus();
  }

  absl::Status Wait() override {
    const absl::Status ended = coordinator_->WaitUntilFinished();
    front_->server().SetServing(false);
    const RunStatus status = coordinator_->Status();
    stopped_early_ = options_.evaluates() ? !status.evaluation.has_value() : status.step < run_.config.steps;
    absl::Status reported;
    if (ended.ok()) reported = Report(status, coordinator_->Losses());
    if (reported.ok() && digests_ != nullptr) reported = digests_->status();
    failure_ = ended.ok() ? reported : ended;
    steps_at_failure_ = status.step;
    // Workers were told how it ended; what still waits is answered.
    Close(kLeaveTime);
    if (ended.ok()) return reported;
    if (options_.evaluates()) return ended;
    const std::string newest = AwaitNewestCheckpoint();
    if (newest.empty()) return Annotate(ended, "the run failed before its first checkpoint");
    return Annotate(ended,
                    absl::StrCat("the run failed; its newest checkpoint is ", newest,
                                 HasDiverged(ended) ? " (eps branch goes on from it or an older one, with a lower peak)"
                                                    : " (go on with --resume)"));
  }

  void KeepFailure() override {
    if (ends_at_once_ || absl::IsAborted(failure_)) return;
    absl::Status kept = out_.Reclaim();
    if (kept.ok()) {
      kept = WriteFileAtomically(folder_.failure(),
                                 FailureJson(steps_at_failure_, failure_.message(), HasDiverged(failure_)));
    }
    if (!kept.ok()) LogWarning("failure_not_kept", {{"why", kept.message()}});  // the log has why the run failed
  }

  bool stopped_early() const override { return stopped_early_; }

  std::unique_ptr<DaemonPage> TakePage(const absl::Status& ended) override {
    DaemonView view = View();
    // One that was told to end before has not finished, as its coordinator says too.
    view.phase = !ended.ok() ? run_state::kFailed : stopped_early_ ? run_state::kFinishing : run_state::kFinished;
    if (!ended.ok()) {
      // Of a run whose reports could not be written its coordinator knows nothing.
      if (view.status.failure.empty()) view.status.failure = std::string(ended.message());
      view.status.eta_seconds = -1;
    }
    // The run's ages go on: who looks later is not told that its last step ended just now.
    front_->page().Show([view, clock = SteadyClock(), since = SteadyClock()()] { return Aged(view, clock() - since); });
    return front_->TakePage();
  }

  // By a signal: whoever sent it may start it again.
  void Stop(const std::string& reason) override {
    coordinator_->ExpectReturn();
    coordinator_->RequestStop(reason).IgnoreError();  // the end says why
  }
  void Abort(absl::Status why) override {
    ends_at_once_ = true;
    coordinator_->Fail(std::move(why));
  }

 private:
  DaemonView View() const {
    DaemonView view{.status = coordinator_->Status()};
    const absl::string_view phase = RunPhaseName(view.status.phase);
    view.phase = std::string(phase.data(), phase.size());
    view.expected_resident_bytes = run_.memory.total_bytes() + traffic_.shared_memory.inbox_bytes;
    view.checkpoint_every_steps = run_.config.checkpoint.every_steps;
    view.floor_bytes_per_second = run_.floor_bytes_per_second;
    view.checkpoint_buffer_bytes = run_.memory.capture_bytes;
    view.offloaded_bytes = run_.memory.store.offloaded_bytes;
    view.paging = run_.store->paging();
    view.keys = keys_->state();
    view.grpc_pulled_bytes = traffic_.grpc.pulled_bytes;
    view.grpc_pushed_bytes = traffic_.grpc.pushed_bytes;
    view.shared_memory_pulled_bytes = traffic_.shared_memory.pulled_bytes;
    view.shared_memory_pushed_bytes = traffic_.shared_memory.pushed_bytes;
    view.waiting_pulls = run_.store->num_waits();
    return view;
  }

  absl::Status Report(RunStatus status, const std::vector<double>& losses) {
    EPS_RETURN_IF_ERROR(out_.Reclaim());
    // The folder may be moved, and is another's working directory's: what lies in it is named from there.
    if (!status.newest_checkpoint.empty()) {
      status.newest_checkpoint =
          absl::StrCat(kCheckpointsFolder, "/", std::filesystem::path(status.newest_checkpoint).filename().string());
    }
    if (!options_.evaluates()) EPS_RETURN_IF_ERROR(WriteFileAtomically(folder_.loss_curve(), LossSvg(losses)));
    return WriteFileAtomically(folder_.summary(), SummaryJson(status, losses, run_.state.train_seconds));
  }

  // Of a run that has failed. One that is still written may be the newest in a moment, and is named in its place.
  // Who starts it again after a lost step is not kept waiting.
  std::string AwaitNewestCheckpoint() const {
    const bool waits = !ends_at_once_ && !absl::IsAborted(failure_);
    const absl::Duration deadline = SteadyNow() + (waits ? kLastWriteTime : absl::ZeroDuration());
    RunStatus status = coordinator_->Status();
    while (status.checkpoint_writing_step >= 0 && SteadyNow() < deadline) {
      absl::SleepFor(absl::Milliseconds(10));
      status = coordinator_->Status();
    }
    return status.newest_checkpoint;
  }

  // Of a former sitting: the run goes on, or is done.
  void ForgetFailure() const {
    const absl::Status removed = RemoveIfThere(folder_.failure());
    if (!removed.ok()) LogWarning("failure_not_removed", {{"why", removed.message()}});
  }

  void Close(absl::Duration grace) {
    if (!std::exchange(is_open_, false)) return;
    run_.store->CancelWaiters(absl::UnavailableError("the daemon ends"));
    front_->server().Shutdown(grace);
    shared_memory_.reset();
  }

  // Fixed after Load and Open. In order of use: the later ones point to the earlier ones.
  const DaemonOptions options_;
  const ListenAddress listen_;
  LongWork& work_;  // until Start
  const DaemonIdentity identity_;
  const RunFolder folder_;
  OutFolder out_;
  LoadedRun run_;
  int max_message_bytes_ = 0;
  std::unique_ptr<TraceLog> trace_;  // null: none
  std::unique_ptr<StepTrace> step_trace_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorboardLog> tensorboard_;  // null: none
  std::unique_ptr<DigestLog> digests_;           // null: none is kept
  Traffic traffic_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<TrainingHost> host_;
  std::shared_ptr<const ServerKeysWatch> keys_;
  std::unique_ptr<SharedMemoryServer> shared_memory_;
  bool is_open_ = false;                    // for workers
  std::atomic<bool> ends_at_once_ = false;  // atomic, as a signal's thread sets it
  bool stopped_early_ = false;
  absl::Status failure_;  // of the run, or of its reports, after Wait; with as many steps committed:
  int64_t steps_at_failure_ = 0;
  std::unique_ptr<DaemonFront> front_;  // last: it asks all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> CreateTrainingDaemon(const DaemonOptions& options, const ListenAddress& listen,
                                                             LongWork& work) {
  auto daemon = std::make_unique<TrainingDaemon>(options, listen, work);
  EPS_RETURN_IF_ERROR(daemon->Load());
  if (daemon->finished_before()) {
    EPS_RETURN_IF_ERROR(daemon->ReportIfMissing());
    return daemon;
  }
  EPS_RETURN_IF_ERROR(daemon->Open());
  return daemon;
}

}  // namespace eps::server
