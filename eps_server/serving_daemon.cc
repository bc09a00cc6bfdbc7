#include "eps_server/serving_daemon.h"

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/grpc/message_limits.h"
#include "common/run_folder/endpoint_file.h"
#include "common/spec/run_config.h"
#include "eps_server/checkpoint/serving_checkpoint.h"
#include "eps_server/daemon_front.h"
#include "eps_server/daemon_identity.h"
#include "eps_server/doors.h"
#include "eps_server/out_folder.h"
#include "eps_server/service/control_service.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/service/serving_host.h"
#include "eps_server/service/traffic.h"
#include "eps_server/shared_memory_door.h"
#include "eps_server/telemetry/daemon_view.h"

namespace eps::server {
namespace {

constexpr absl::Duration kLeaveTime = absl::Seconds(2);
constexpr absl::Duration kLeaseCheck = absl::Seconds(1);

class ServingDaemon final : public Daemon {
 public:
  ServingDaemon(const DaemonOptions& options, ListenAddress listen, LongWork& work)
      : options_(options),
        listen_(std::move(listen)),
        work_(work),
        identity_(NewDaemonIdentity(options.out)),
        out_(options.out) {}

  ~ServingDaemon() override { front_.reset(); }  // first: it uses all of what follows it

  absl::Status Load() {
    EPS_ASSIGN_OR_RETURN(OpenedDoors doors, OpenDoors(listen_, options_));
    keys_ = std::move(doors.keys);
    EPS_RETURN_IF_ERROR(out_.Make());
    EPS_ASSIGN_OR_RETURN(front_, DaemonFront::Open(options_, listen_, std::move(doors.rpc), identity_, &work_));
    EPS_ASSIGN_OR_RETURN(served_,
                         LoadCheckpointForServing(options_.serve_folder, {.threads = options_.threads,
                                                                          .max_context = options_.serve_context,
                                                                          .overrides = options_.overrides,
                                                                          .work = &work_}));
    EPS_ASSIGN_OR_RETURN(max_message_bytes_, MaxControlMessageBytes(served_.run));
    host_ = std::make_unique<ServingHost>(served_.run);
    EPS_RETURN_IF_ERROR(work_.Add(0));
    out_.Keep();
    return RemoveEndpointFile(options_.out, EndpointFile::kRunning);
  }

  absl::Status Start() override {
    status_.parameters = served_.model.num_parameters();
    status_.model_state_bytes = served_.store->sizes().total_bytes();
    status_.newest_checkpoint = served_.folder;
    status_.step = served_.state.version.value();
    status_.loss = served_.state.losses.empty() ? 0 : served_.state.losses.back();
    front_->page().Show([this] { return View(); });
    EPS_ASSIGN_OR_RETURN(shared_memory_, OpenSharedMemory(served_.run, {.incarnation = identity_.incarnation,
                                                                        .model = &served_.model,
                                                                        .store = served_.store.get(),
                                                                        .last_version = served_.state.version,
                                                                        .traffic = &traffic_.shared_memory}));
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(NewControlService({.identity = identity_,
                                          .run_config = SerializeRunConfig(served_.run),
                                          .shared_memory_socket = SharedMemorySocket(shared_memory_),
                                          .host = host_.get(),
                                          .serving = host_.get(),
                                          .serving_version = served_.state.version,
                                          .serving_status = status_,
                                          .on_stop = [this](const std::string& reason) { Stop(reason); },
                                          .keys = [keys = keys_] { return keys->state(); }}));
    services.push_back(NewDataService({.incarnation = identity_.incarnation,
                                       .model = &served_.model,
                                       .store = served_.store.get(),
                                       .aggregator = nullptr,
                                       .last_version = served_.state.version,
                                       .traffic = &traffic_.grpc}));
    EPS_RETURN_IF_ERROR(front_->GoOn(std::move(services), max_message_bytes_));
    LogInfo("daemon_listening", {{"grpc", front_->server().address()},
                                 {"metrics", front_->page().address()},
                                 {"incarnation", identity_.incarnation},
                                 {"serves", served_.folder},
                                 {"parameters", served_.model.num_parameters()}});
    return absl::OkStatus();
  }

  absl::Status Wait() override {
    while (!StoppedWithin(kLeaseCheck)) host_->EndExpired();
    host_->Finish();
    front_->server().Shutdown(kLeaveTime);
    shared_memory_.reset();
    MutexLock lock(mu_);
    return why_;
  }

  void Stop(const std::string& reason) override {
    LogInfo("daemon_stops", {{"reason", reason}});
    End(absl::OkStatus());
  }
  void Abort(absl::Status why) override { End(std::move(why)); }

  std::unique_ptr<DaemonPage> TakePage(const absl::Status& ended) override {
    DaemonView view = View();
    view.phase = ended.ok() ? run_state::kFinished : run_state::kFailed;
    front_->page().Show([view] { return view; });
    return front_->TakePage();
  }

 private:
  DaemonView View() const {
    DaemonView view{.phase = run_state::kServing, .status = status_};
    view.keys = keys_->state();
    host_->FillWorkers(view.status);
    view.grpc_pulled_bytes = traffic_.grpc.pulled_bytes;
    view.shared_memory_pulled_bytes = traffic_.shared_memory.pulled_bytes;
    return view;
  }

  bool StoppedWithin(absl::Duration time) {
    MutexLock lock(mu_);
    if (!stopped_) changed_.WaitFor(mu_, absl::ToChronoNanoseconds(time));
    return stopped_;
  }

  void End(absl::Status why) {
    MutexLock lock(mu_);
    if (!stopped_) why_ = std::move(why);
    stopped_ = true;
    changed_.NotifyAll();
  }

  // Fixed after Load.
  const DaemonOptions options_;
  const ListenAddress listen_;
  LongWork& work_;  // until Start
  const DaemonIdentity identity_;
  OutFolder out_;
  ServingCheckpoint served_;
  int max_message_bytes_ = 0;
  std::shared_ptr<const ServerKeysWatch> keys_;
  RunStatus status_;  // what does not change; set by Start
  std::unique_ptr<ServingHost> host_;
  Traffic traffic_;
  std::unique_ptr<SharedMemoryServer> shared_memory_;
  std::unique_ptr<DaemonFront> front_;

  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> CreateServingDaemon(const DaemonOptions& options, const ListenAddress& listen,
                                                            LongWork& work) {
  auto daemon = std::make_unique<ServingDaemon>(options, listen, work);
  EPS_RETURN_IF_ERROR(daemon->Load());
  return daemon;
}

}  // namespace eps::server
