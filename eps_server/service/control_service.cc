#include "eps_server/service/control_service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/choices/choices_message.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/proto_text.h"
#include "eps_server/membership/membership.h"
#include "eps_server/service/event_stream.h"
#include "eps_server/service/generate_call.h"
#include "eps_server/service/start_orders.h"
#include "eps_server/service/status_reply.h"
#include "eps_server/service/worker_messages.h"
#include "proto/control.grpc.pb.h"

namespace eps::server {
namespace {

constexpr size_t kMaxReasonBytes = 256;
constexpr uint32_t kMaxThreads = 1 << 16;  // for people: more is shown as so many

class ControlService final : public proto::Control::CallbackService {
 public:
  explicit ControlService(ControlServiceOptions options)
      : options_(std::move(options)), start_orders_(options_.most_workers, SteadyClock()) {}

  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context, const proto::AttachRequest* request,
                                   proto::AttachReply* reply) override {
    return Answer(context, AttachWorker(*request, context->peer(), *reply));
  }

  grpc::ServerBidiReactor<proto::WorkerEvent, proto::DaemonEvent>* Events(grpc::CallbackServerContext*) override {
    return StartEventStream(*options_.host, options_.identity.incarnation);
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const proto::StatusRequest*,
                                      proto::StatusReply* reply) override {
    FillStatusReply(*reply);
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* FollowOrders(grpc::CallbackServerContext* context, const proto::WorkerStarter* starter,
                                         proto::StatusReply* reply) override {
    NoteStarter(*starter);
    FillStatusReply(*reply);
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ExpectWorkers(grpc::CallbackServerContext* context,
                                          const proto::ExpectWorkersRequest* request,
                                          proto::ExpectWorkersReply*) override {
    if (options_.coordinator == nullptr) return Answer(context, NotTraining());
    return Answer(context, options_.coordinator->ExpectWorkers(request->workers()));
  }

  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context, const proto::CheckpointRequest*,
                                       proto::CheckpointReply* reply) override {
    if (options_.coordinator == nullptr) return Answer(context, NotTraining());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    // `reply` lives until the reactor has finished.
    options_.coordinator->RequestCheckpoint([reactor, reply](absl::StatusOr<std::string> path) {
      if (path.ok()) {
        reply->set_path(ProtoText(*path));
        reply->set_step(CheckpointStep(*path));
      }
      // A disk that is full is UNAVAILABLE among ourselves; to who asks over gRPC that would say that no daemon is there.
      reactor->Finish(ToGrpc(absl::IsUnavailable(path.status()) ? absl::FailedPreconditionError(path.status().message())
                                                                : path.status()));
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context, const proto::StopRequest* request,
                                 proto::StopReply* reply) override {
    std::string reason = request->reason().substr(0, kMaxReasonBytes);
    if (options_.coordinator != nullptr) {
      const absl::StatusOr<int64_t> last = options_.coordinator->RequestStop(std::move(reason));
      if (!last.ok()) return Answer(context, last.status());
      reply->set_step(*last);
      reply->set_evaluates(options_.coordinator->Status().evaluates);
    } else {
      options_.on_stop(reason);
    }
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const proto::DrainRequest* request,
                                  proto::DrainReply*) override {
    if (options_.coordinator == nullptr) return Answer(context, NotTraining());
    const auto num_workers = static_cast<size_t>(request->worker_id_size());
    if (num_workers == 0 || num_workers > kMaxWorkers) {
      return Answer(context, absl::InvalidArgumentError(
                                 absl::StrCat("worker_id: ", num_workers, " are given, must be 1 to ", kMaxWorkers)));
    }
    std::vector<WorkerId> workers;
    for (const int64_t id : request->worker_id()) workers.push_back(WorkerId(id));
    return Answer(context, options_.coordinator->Drain(workers));
  }

  grpc::ServerUnaryReactor* StartWorkers(grpc::CallbackServerContext* context,
                                         const proto::StartWorkersRequest* request,
                                         proto::StartWorkersReply* reply) override {
    if (options_.coordinator == nullptr) return Answer(context, NotTraining());
    const RunPhase phase = options_.coordinator->Status().phase;
    if (phase != RunPhase::kTraining && phase != RunPhase::kWaitingForWorkers) {
      return Answer(context, absl::FailedPreconditionError("the run neither trains nor waits for workers"));
    }
    const absl::StatusOr<int64_t> number = start_orders_.Ask(request->workers());
    if (!number.ok()) return Answer(context, number.status());
    LogInfo("workers_asked_for", {{"workers", request->workers()}, {"order", *number}, {"peer", context->peer()}});
    reply->set_number(*number);
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerWriteReactor<proto::GenerateReply>* Generate(grpc::CallbackServerContext*,
                                                           const proto::GenerateRequest* request) override {
    return StartGenerateCall(options_.serving, *request);
  }

 private:
  void FillStatusReply(proto::StatusReply& reply) {
    if (options_.coordinator != nullptr) {
      FillStatus(options_.coordinator->Status(), reply);
    } else {
      RunStatus status = options_.serving_status;
      options_.serving->FillWorkers(status);
      FillStatus(status, reply);
      reply.set_state(run_state::kServing);
    }
    reply.set_incarnation(options_.identity.incarnation);
    reply.set_run(options_.identity.run);
    FillKeys(options_.keys(), absl::Now(), reply);
    if (const StartOrders::Order order = start_orders_.newest(); order.number > 0) {
      proto::StartOrder& said = *reply.mutable_start_order();
      said.set_number(order.number);
      said.set_workers(order.workers);
      said.set_is_over(order.is_over);
      said.set_failure(order.failure);
    }
  }

  void NoteStarter(const proto::WorkerStarter& starter) {
    const std::string why = start_orders_.NoteStarter(starter.order(), starter.is_over(), starter.failure());
    if (!why.empty()) LogWarning("workers_not_started", {{"order", starter.order()}, {"why", why}});
  }

  static absl::Status NotTraining() {
    return absl::FailedPreconditionError("this daemon serves a checkpoint and trains nothing");
  }

  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  absl::Status AttachWorker(const proto::AttachRequest& request, const std::string& peer, proto::AttachReply& reply) {
    EPS_RETURN_IF_ERROR(CheckProtocolVersion(request.protocol_version()));
    EPS_ASSIGN_OR_RETURN(const WorkerId worker,
                         options_.host->Attach({.device_name = request.device_name(),
                                                .device_model = request.device_model(),
                                                .device_cap_bytes = request.device_cap_bytes(),
                                                .process_id = request.process_id(),
                                                .threads = static_cast<int>(std::min(request.threads(), kMaxThreads)),
                                                .metrics_address = PageAddress(request.metrics_address(), peer),
                                                .host_name = request.host_name()}));
    reply.set_worker_id(worker.value());
    reply.set_incarnation(options_.identity.incarnation);
    reply.set_clock_nanos(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
    reply.set_run_config(options_.run_config);
    reply.set_lease_millis(absl::ToInt64Milliseconds(options_.host->lease()));
    reply.set_serving(options_.serving != nullptr);
    reply.set_serving_version(options_.serving_version.value());
    reply.set_shared_memory_socket(options_.shared_memory_socket);
    *reply.mutable_choices() = ChoicesToProto(options_.host->HeldChoices(request.device_model())).choices();
    return absl::OkStatus();
  }

  const ControlServiceOptions options_;
  StartOrders start_orders_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewControlService(ControlServiceOptions options) {
  return std::make_unique<ControlService>(std::move(options));
}

}  // namespace eps::server
