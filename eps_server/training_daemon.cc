#include "eps_server/training_daemon.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/memory_speed.h"
#include "common/base/new_folder.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/resumed_run.h"
#include "common/grpc/message_limits.h"
#include "common/grpc/thread_needs.h"
#include "common/model/model_spec.h"
#include "common/samples/class_names.h"
#include "common/samples/tokenizer_of_ids.h"
#include "common/schedule/loss_scale.h"
#include "common/telemetry/trace_log.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/daemon_front.h"
#include "eps_server/daemon_identity.h"
#include "eps_server/data/corpus_tokens.h"
#include "eps_server/data/data_mark.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/data/step_data.h"
#include "eps_server/doors.h"
#include "eps_server/endpoint_file.h"
#include "eps_server/memory/daemon_memory.h"
#include "eps_server/report/digest_log.h"
#include "eps_server/report/loss_svg.h"
#include "eps_server/report/metrics_log.h"
#include "eps_server/report/step_trace.h"
#include "eps_server/report/summary.h"
#include "eps_server/service/control_service.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/service/traffic.h"
#include "eps_server/service/training_host.h"
#include "eps_server/shared_memory_door.h"
#include "eps_server/step/coordinator.h"
#include "eps_server/step/step_report.h"
#include "eps_server/store/store.h"

namespace eps::server {
namespace {

// Workers that were told to finish leave within this time; then their streams are cut.
constexpr absl::Duration kLeaveTime = absl::Seconds(5);

std::string CheckpointFolder(const std::string& out) { return out + "/checkpoints"; }

// Looks without changing anything: a Checkpointer would clean up.
bool HoldsCheckpoints(const std::string& out) {
  std::error_code error;
  // Not a range-for, whose increment throws.
  std::filesystem::directory_iterator entry(CheckpointFolder(out), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == "latest" || absl::StartsWith(name, "step-")) return true;
  }
  return false;
}

absl::Status CheckOut(const DaemonOptions& options) {
  std::error_code error;
  const auto status = std::filesystem::status(options.out, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(absl::StrCat("--out ", options.out, ": not a folder"));
  }
  if (options.resume && !std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("--resume: there is no folder ", options.out));
  }
  if (!options.resume && HoldsCheckpoints(options.out)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out ", options.out,
                     " holds checkpoints of a run: give --resume to go on from the newest, or "
                     "another folder for a new run"));
  }
  if (!HoldsCheckpoints(options.out) && std::filesystem::exists(options.out + "/summary.json", error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out ", options.out,
                     " holds a run that has ended and left no checkpoint: there is nothing to go on from; give another "
                     "folder for a new run"));
  }
  return absl::OkStatus();
}

// `needed_bytes`: of the daemon as a whole.
absl::StatusOr<std::unique_ptr<Store>> CreateStore(const ModelSpec& model, const RunConfig& run, int64_t needed_bytes) {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Create(model, run);
  if (!absl::IsResourceExhausted(store.status())) return store;
  return absl::ResourceExhaustedError(
      absl::StrCat("the daemon needs at least ", needed_bytes, " bytes (", FormatByteSize(needed_bytes),
                   ") of this host's memory, which `eps plan` explains: ", store.status().message()));
}

// The optimizer's threads against the memory: measured once, before the model takes its own.
constexpr absl::Duration kFloorTime = absl::Milliseconds(50);

constexpr size_t kMaxClassesLogged = 100;

class TrainingDaemon final : public Daemon {
 public:
  TrainingDaemon(const DaemonOptions& options, ListenAddress listen, LongWork& work)
      : options_(options), listen_(std::move(listen)), work_(work), identity_(NewDaemonIdentity(options.out)) {}

  ~TrainingDaemon() override { Close(absl::ZeroDuration()); }

  // Reads and checks; leaves nothing on disk, but for the tokens of data that has none yet.
  absl::Status Load() {
    EPS_ASSIGN_OR_RETURN(RpcServerOptions rpc_options, OpenDoors(listen_, options_));
    EPS_ASSIGN_OR_RETURN(certificate_expiry_seconds_, CertificateExpirySeconds(options_.doors));
    std::error_code ignored;
    if (std::filesystem::exists(options_.out, ignored)) EPS_RETURN_IF_ERROR(LockOut());
    EPS_RETURN_IF_ERROR(CheckOut(options_));
    EPS_ASSIGN_OR_RETURN(run_, options_.resume ? LoadRunOfFolder(options_.out, options_.run_file, options_.overrides)
                                               : LoadRunConfig(options_.run_file, options_.overrides));
    EPS_ASSIGN_OR_RETURN(max_message_bytes_, MaxControlMessageBytes(run_));
    EPS_RETURN_IF_ERROR(ReadSource());
    if (!HoldsCheckpoints(options_.out)) EPS_RETURN_IF_ERROR(CheckTokenizerOfIds(run_));
    // What comes now may take long.
    EPS_ASSIGN_OR_RETURN(out_, NewFolder::Make(options_.out));
    EPS_RETURN_IF_ERROR(LockOut());
    EPS_ASSIGN_OR_RETURN(front_, DaemonFront::Open(options_, listen_, std::move(rpc_options), identity_, &work_));
    EPS_RETURN_IF_ERROR(OpenData());
    EPS_ASSIGN_OR_RETURN(model_, BuildModel(run_.model));
    DaemonMemory memory = ComputeDaemonMemory(model_, run_);
    if (options_.window_bytes > 0) memory.contribution_window_bytes = options_.window_bytes;
    expected_resident_bytes_ = memory.total_bytes();
    checkpoint_buffer_bytes_ = memory.capture_bytes;
    // A smaller state may lie in caches, which are faster: it has no floor in the memory.
    if (memory.model_state_bytes() >= static_cast<int64_t>(kMemorySpeedBytes)) {
      floor_bytes_per_second_ = MeasureMemorySpeed(options_.threads, kFloorTime).per_thread();
    }
    EPS_RETURN_IF_ERROR(BeginStage("taking memory"));
    EPS_ASSIGN_OR_RETURN(store_, CreateStore(model_, run_, expected_resident_bytes_));
    if (GoesOn()) {
      EPS_RETURN_IF_ERROR(Resume());
      return SettleTokens(CheckData());
    }
    EPS_RETURN_IF_ERROR(CheckData());
    resumed_.loss_scale = FirstLossScale(run_.precision.loss_scale);
    if (run_.model_from.empty()) {
      return InitStore(model_, options_.threads, *store_, &work_);
    }
    return LoadHuggingFace(run_.model_from, model_, options_.threads, *store_, &work_);
  }

  // Makes everything that writes into the folder, which stays from now on.
  absl::Status Open() {
    EPS_RETURN_IF_ERROR(BeginStage("opening the run"));
    out_.Keep();
    EPS_RETURN_IF_ERROR(RemoveEndpointFile(options_.out, EndpointFile::kRunning));
    // Of a former sitting: it would say that the run has ended.
    if (resumed_.version.value() < run_.steps) {
      EPS_RETURN_IF_ERROR(RemoveIfThere(options_.out + "/summary.json"));
    }
    if (source_.has_value()) EPS_RETURN_IF_ERROR(KeepModelSource(*std::exchange(source_, std::nullopt), options_.out));
    if (checkpointer_ == nullptr) {
      EPS_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(CheckpointFolder(options_.out), model_, run_));
    }
    EPS_ASSIGN_OR_RETURN(metrics_, MetricsLog::Open(options_.out, run_.evaluation.is_on(), resumed_.version.value()));
    std::vector<StepObserver*> observers = {metrics_.get()};
    if (!options_.digest_file.empty()) {
      EPS_ASSIGN_OR_RETURN(digests_, DigestLog::Open(options_.digest_file, &model_, store_.get()));
      observers.push_back(digests_.get());
    }
    if (!options_.trace_file.empty()) {
      EPS_ASSIGN_OR_RETURN(trace_, TraceLog::Create({.path = options_.trace_file}));
      trace_->NameProcess("daemon");
      step_trace_ = std::make_unique<StepTrace>(trace_.get());
      observers.push_back(step_trace_.get());
    }
    EPS_ASSIGN_OR_RETURN(coordinator_, Coordinator::Create({.model = &model_,
                                                            .run = &run_,
                                                            .store = store_.get(),
                                                            .checkpointer = checkpointer_.get(),
                                                            .observers = std::move(observers),
                                                            .witness = digests_.get(),
                                                            .trace = trace_.get(),
                                                            .data = std::move(data_),
                                                            .evaluation_data = std::move(evaluation_data_),
                                                            .resume = resumed_,
                                                            .expected_workers = options_.expected_workers,
                                                            .lease = options_.lease,
                                                            .threads = options_.threads,
                                                            .window_bytes = options_.window_bytes,
                                                            .most_steps = options_.most_steps}));
    host_ = std::make_unique<TrainingHost>(*coordinator_);
    front_->page().Show([this] { return View(); });
    return absl::OkStatus();
  }

  // One daemon at a time writes into the folder.
  absl::Status LockOut() {
    if (out_lock_.is_open()) return absl::OkStatus();
    absl::StatusOr<FileDescriptor> lock = LockDirectory(options_.out);
    if (!lock.ok()) return Annotate(lock.status(), "--out");
    out_lock_ = *std::move(lock);
    return absl::OkStatus();
  }

  // A run that was killed after its last checkpoint may lack its reports: what the checkpoint knows makes them.
  absl::Status ReportIfMissing() {
    std::error_code ignored;
    if (std::filesystem::exists(options_.out + "/summary.json", ignored)) return absl::OkStatus();
    RunStatus status;
    status.step = resumed_.version.value();
    status.steps = run_.steps;
    status.tokens = resumed_.tokens;
    status.skipped_steps = resumed_.skipped_steps;
    status.parameters = model_.num_parameters();
    status.model_state_bytes = store_->sizes().total_bytes();
    status.newest_checkpoint = checkpointer_->LatestPath();
    return Report(status, resumed_.losses);
  }

  bool finished_before() const override { return options_.resume && resumed_.version.value() >= run_.steps; }

  absl::Status Start() override {
    EPS_ASSIGN_OR_RETURN(shared_memory_, OpenSharedMemory(run_, {.incarnation = identity_.incarnation,
                                                                 .model = &model_,
                                                                 .store = store_.get(),
                                                                 .aggregator = &coordinator_->aggregator(),
                                                                 .last_version = Version(run_.steps),
                                                                 .copiers = CopierThreads(options_.threads),
                                                                 .traffic = &traffic_.shared_memory}));
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(NewControlService({.identity = identity_,
                                          .run_config = SerializeRunConfig(run_),
                                          .shared_memory_socket = SharedMemorySocket(shared_memory_),
                                          .host = host_.get(),
                                          .coordinator = coordinator_.get(),
                                          .most_workers = run_.batch.virtual_nodes}));
    services.push_back(NewDataService({.incarnation = identity_.incarnation,
                                       .model = &model_,
                                       .store = store_.get(),
                                       .aggregator = &coordinator_->aggregator(),
                                       .last_version = Version(run_.steps),
                                       .traffic = &traffic_.grpc}));
    is_open_ = true;
    if (absl::Status status = front_->GoOn(std::move(services), max_message_bytes_); !status.ok()) {
      // Workers may be in already: whoever waits is answered before what it waits with is gone.
      coordinator_->Fail(status);
      coordinator_->WaitUntilFinished().IgnoreError();  // that status
      return status;
    }
    LogInfo("daemon_listening", {{"grpc", front_->server().address()},
                                 {"metrics", front_->page().address()},
                                 {"incarnation", identity_.incarnation},
                                 {"step", resumed_.version.value()},
                                 {"steps", run_.steps},
                                 {"parameters", model_.num_parameters()},
                                 {"model_state_bytes", store_->sizes().total_bytes()},
                                 {"contribution_window_bytes", coordinator_->aggregator().window_bytes()}});
    return absl::OkStatus();
  }

  absl::Status Wait() override {
    const absl::Status ended = coordinator_->WaitUntilFinished();
    front_->server().SetServing(false);
    const RunStatus status = coordinator_->Status();
    stopped_early_ = status.step < run_.steps;
    absl::Status reported;
    if (ended.ok()) reported = Report(status, coordinator_->Losses());
    if (reported.ok() && digests_ != nullptr) reported = digests_->status();
    // Workers were told how it ended; what still waits is answered.
    Close(kLeaveTime);
    if (ended.ok()) return reported;
    return Annotate(ended, status.newest_checkpoint.empty()
                               ? "the run failed before its first checkpoint"
                               : absl::StrCat("the run failed; its newest checkpoint is ", status.newest_checkpoint,
                                              " (go on with --resume)"));
  }

  bool stopped_early() const override { return stopped_early_; }

  std::unique_ptr<DaemonPage> TakePage(const absl::Status& ended) override {
    DaemonView view = View();
    // One that was told to end before has not finished, as its coordinator says too.
    view.phase = !ended.ok() ? run_state::kFailed : stopped_early_ ? run_state::kFinishing : run_state::kFinished;
    front_->page().Show([view] { return view; });
    return front_->TakePage();
  }

  void Stop(const std::string& reason) override {
    coordinator_->RequestStop(reason).IgnoreError();
  }  // the end says why
  void Abort(absl::Status why) override { coordinator_->Fail(std::move(why)); }

 private:
  // Where tokens lie that were made of the data.
  std::string DataFolder() const { return options_.out + "/data"; }
  std::string EvaluationFolder() const { return options_.out + "/evaluation"; }

  // Of the start. Errors: CANCELLED it was given up
  absl::Status BeginStage(const char* what) {
    EPS_RETURN_IF_ERROR(work_.Add(0));
    work_.Begin(what);
    return absl::OkStatus();
  }

  // From a checkpoint; false: from the start, --resume or not.
  bool GoesOn() const { return options_.resume && HoldsCheckpoints(options_.out); }

  // Before what takes long. A run that goes on has kept it at its start.
  absl::Status ReadSource() {
    if (GoesOn() && HoldsModelSource(options_.out)) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(source_, ReadModelSource(run_));
    return absl::OkStatus();
  }

  // Of what the run began with: what it keeps is taken in its place.
  void SayWhatIsGone() const {
    const std::vector<std::string> gone = FindGoneSources(run_);
    if (gone.empty()) return;
    LogInfo("kept_source_taken", {{"gone", absl::StrJoin(gone, ", ")}, {"kept_in", ModelSourceFolder(options_.out)}});
  }

  // What "auto" has turned out to be.
  void NameChatTemplate(const RunConfig& of_tokens) {
    if (!source_.has_value() || source_->chat_template.empty()) return;
    const std::vector<DataSource> given = run_.all_sources(), made = of_tokens.all_sources();
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].data.needs_tokenizing() || made[i].data.chat_template.empty()) continue;
      source_->chat_template = made[i].data.chat_template;
      return;
    }
  }

  // The names are part of the run from here on, in its checkpoints too.
  absl::Status NameClasses(RunConfig& of_tokens) {
    // Begun before there were names, or with numbers: the files' own numbers, as before.
    if (GoesOn() && run_.model.class_names.empty()) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(run_.model.class_names, ClassNamesOf(run_, of_tokens));
    of_tokens.model.class_names = run_.model.class_names;
    for (size_t i = 0; i < std::min(run_.model.class_names.size(), kMaxClassesLogged); ++i) {
      LogInfo("class_named", {{"class", i}, {"name", run_.model.class_names[i]}});
    }
    return absl::OkStatus();
  }

  // Changes run_.model only by its classes' names.
  absl::Status OpenData() {
    const FormerTokens former = GoesOn() ? FormerTokens::kKept : FormerTokens::kReplaced;
    EPS_ASSIGN_OR_RETURN(RunConfig readable, GoesOn() ? WithKeptTokenizer(options_.out, run_) : run_);
    if (GoesOn()) SayWhatIsGone();
    EPS_ASSIGN_OR_RETURN(RunConfig of_tokens, WithTokenFiles(readable, DataFolder(), options_.threads, former, &work_));
    NameChatTemplate(of_tokens);
    EPS_RETURN_IF_ERROR(NameClasses(of_tokens));
    EPS_RETURN_IF_ERROR(BeginStage("reading the data"));
    EPS_ASSIGN_OR_RETURN(data_, StepData::Create(of_tokens));
    if (!run_.evaluation.is_on()) return absl::OkStatus();
    readable.model.class_names = run_.model.class_names;
    EPS_ASSIGN_OR_RETURN(evaluation_data_,
                         EvaluationData::Open(readable, *data_, EvaluationFolder(), options_.threads, former, &work_));
    return absl::OkStatus();
  }

  absl::Status Resume() {
    EPS_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(CheckpointFolder(options_.out), model_, run_));
    EPS_ASSIGN_OR_RETURN(resumed_, checkpointer_->LoadLatest(*store_, &work_));
    LogInfo("run_resumed", {{"checkpoint", checkpointer_->LatestPath()}, {"step", resumed_.version.value()}});
    return absl::OkStatus();
  }

  // Of a run that goes on tokens that had to be made are taken only if they are what it began with.
  absl::Status SettleTokens(absl::Status checked) const {
    for (const std::string& folder : {DataFolder(), EvaluationFolder()}) {
      if (checked.ok()) {
        checked = AcceptNewTokens(folder);
      } else {
        DropNewTokens(folder);
      }
    }
    return checked;
  }

  // What a run goes on with is what it began with: its bits are those of a run that was never disturbed.
  absl::Status CheckData() {
    EPS_ASSIGN_OR_RETURN(const DataMark mark, MarkDataFiles(data_->files()));
    if (resumed_.data.is_known() && resumed_.data != mark) {
      std::vector<std::string> paths;
      for (const DataSource& source : run_.all_sources()) paths.push_back(source.data.path);
      const bool is_read_itself = data_->files() == paths;
      const std::string difference =
          absl::StrCat(is_read_itself ? "" : "by the tokens and the index that are read: ",
                       resumed_.data.num_bytes != mark.num_bytes
                           ? absl::StrCat(resumed_.data.num_bytes, " bytes then, ", mark.num_bytes, " now")
                           : std::string("the same size, and other content"));
      return absl::FailedPreconditionError(absl::StrCat(
          run_.sources.empty() ? "data.path: " : "data.sources: ", absl::StrJoin(paths, ", "),
          run_.sources.empty() ? " is not the file that " : " are not the files that ", checkpointer_->LatestPath(),
          " was trained on: ", difference, "; put back what was there, or start the run in another folder"));
    }
    resumed_.data = mark;
    return absl::OkStatus();
  }

  DaemonView View() const {
    DaemonView view{.status = coordinator_->Status()};
    const absl::string_view phase = RunPhaseName(view.status.phase);
    view.phase = std::string(phase.data(), phase.size());
    view.expected_resident_bytes = expected_resident_bytes_ + traffic_.shared_memory.inbox_bytes;
    view.checkpoint_every_steps = run_.checkpoint.every_steps;
    view.floor_bytes_per_second = floor_bytes_per_second_;
    view.checkpoint_buffer_bytes = checkpoint_buffer_bytes_;
    view.certificate_expiry_seconds = certificate_expiry_seconds_;
    view.grpc_pulled_bytes = traffic_.grpc.pulled_bytes;
    view.grpc_pushed_bytes = traffic_.grpc.pushed_bytes;
    view.shared_memory_pulled_bytes = traffic_.shared_memory.pulled_bytes;
    view.shared_memory_pushed_bytes = traffic_.shared_memory.pushed_bytes;
    view.waiting_pulls = store_->num_waits();
    return view;
  }

  absl::Status Report(const RunStatus& status, const std::vector<double>& losses) {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(options_.out + "/loss.svg", LossSvg(losses)));
    return WriteFileAtomically(options_.out + "/summary.json", SummaryJson(status, losses, resumed_.train_seconds));
  }

  void Close(absl::Duration grace) {
    if (!std::exchange(is_open_, false)) return;
    store_->CancelWaiters(absl::UnavailableError("the daemon ends"));
    front_->server().Shutdown(grace);
    shared_memory_.reset();
  }

  // Fixed after Load and Open. In order of use: the later ones point to the earlier ones.
  const DaemonOptions options_;
  const ListenAddress listen_;
  LongWork& work_;  // until Start
  const DaemonIdentity identity_;
  FileDescriptor out_lock_;
  NewFolder out_;
  RunConfig run_;
  std::optional<ModelSource> source_;  // what Open keeps; nullopt: nothing more, it is there
  ModelSpec model_;
  int max_message_bytes_ = 0;
  std::unique_ptr<StepData> data_;
  std::unique_ptr<EvaluationData> evaluation_data_;  // null: nothing is evaluated
  std::unique_ptr<Store> store_;
  std::unique_ptr<Checkpointer> checkpointer_;
  RunState resumed_;                 // or that of a new run
  std::unique_ptr<TraceLog> trace_;  // null: none
  std::unique_ptr<StepTrace> step_trace_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<DigestLog> digests_;  // null: none is kept
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<TrainingHost> host_;
  int64_t expected_resident_bytes_ = 0;
  int64_t checkpoint_buffer_bytes_ = 0;
  double certificate_expiry_seconds_ = 0;
  double floor_bytes_per_second_ = 0;
  Traffic traffic_;
  std::unique_ptr<SharedMemoryServer> shared_memory_;
  bool is_open_ = false;  // for workers
  bool stopped_early_ = false;
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
