#include "eps_server/service/starting_service.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/proto_text.h"
#include "eps_server/service/status_reply.h"
#include "eps_server/service/worker_messages.h"
#include "proto/control.grpc.pb.h"
#include "proto/data_plane.grpc.pb.h"

namespace eps::server {
namespace {

std::string RefusalText(const LongWork& work) {
  return absl::StrCat("the daemon is starting (", ToText(work.Look()), "): ask again when it is there");
}

// Of a command: somebody is there, and says no.
absl::Status Refusal(const LongWork& work) { return absl::FailedPreconditionError(RefusalText(work)); }

// Of a stream of a worker that the daemon before had let in: it attaches anew, and would take any other code for a fault.
absl::Status LostLink(const LongWork& work) { return absl::UnavailableError(RefusalText(work)); }

template <typename Request, typename Reply>
class RefusedStream final : public grpc::ServerBidiReactor<Request, Reply> {
 public:
  explicit RefusedStream(const absl::Status& why) { this->Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

class RefusedGenerate final : public grpc::ServerWriteReactor<proto::GenerateReply> {
 public:
  explicit RefusedGenerate(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

class StartingControl final : public proto::Control::CallbackService {
 public:
  StartingControl(DaemonIdentity identity, const LongWork* work) : identity_(std::move(identity)), work_(*work) {}

  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context, const proto::AttachRequest* request,
                                   proto::AttachReply* reply) override {
    const absl::Status understood = CheckProtocolVersion(request->protocol_version());
    if (understood.ok()) reply->set_starting(ProtoText(ToText(work_.Look())));
    return Answer(context, understood);
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const proto::StatusRequest*,
                                      proto::StatusReply* reply) override {
    return AnswerStatus(context, *reply);
  }
  grpc::ServerUnaryReactor* FollowOrders(grpc::CallbackServerContext* context, const proto::WorkerStarter*,
                                         proto::StatusReply* reply) override {
    return AnswerStatus(context, *reply);
  }

  grpc::ServerBidiReactor<proto::WorkerEvent, proto::DaemonEvent>* Events(grpc::CallbackServerContext*) override {
    return new RefusedStream<proto::WorkerEvent, proto::DaemonEvent>(LostLink(work_));
  }
  grpc::ServerWriteReactor<proto::GenerateReply>* Generate(grpc::CallbackServerContext*,
                                                           const proto::GenerateRequest*) override {
    return new RefusedGenerate(Refusal(work_));
  }
  grpc::ServerUnaryReactor* ExpectWorkers(grpc::CallbackServerContext* context, const proto::ExpectWorkersRequest*,
                                          proto::ExpectWorkersReply*) override {
    return Answer(context, Refusal(work_));
  }
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context, const proto::CheckpointRequest*,
                                       proto::CheckpointReply*) override {
    return Answer(context, Refusal(work_));
  }
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context, const proto::StopRequest*,
                                 proto::StopReply*) override {
    return Answer(context, Refusal(work_));
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const proto::DrainRequest*,
                                  proto::DrainReply*) override {
    return Answer(context, Refusal(work_));
  }
  grpc::ServerUnaryReactor* StartWorkers(grpc::CallbackServerContext* context, const proto::StartWorkersRequest*,
                                         proto::StartWorkersReply*) override {
    return Answer(context, Refusal(work_));
  }

 private:
  grpc::ServerUnaryReactor* AnswerStatus(grpc::CallbackServerContext* context, proto::StatusReply& reply) {
    FillStart(work_.Look(), reply);
    reply.set_incarnation(identity_.incarnation);
    reply.set_run(identity_.run);
    return Answer(context, absl::OkStatus());
  }

  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  const DaemonIdentity identity_;
  const LongWork& work_;
};

// For channels of workers of the daemon before, which have connected anew by themselves.
class StartingData final : public proto::DataPlane::CallbackService {
 public:
  explicit StartingData(const LongWork* work) : work_(*work) {}

  grpc::ServerBidiReactor<proto::PullRequest, proto::Chunk>* Pull(grpc::CallbackServerContext*) override {
    return new RefusedStream<proto::PullRequest, proto::Chunk>(LostLink(work_));
  }
  grpc::ServerBidiReactor<proto::Chunk, proto::PushReply>* Push(grpc::CallbackServerContext*) override {
    return new RefusedStream<proto::Chunk, proto::PushReply>(LostLink(work_));
  }

 private:
  const LongWork& work_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> NewStartingServices(const DaemonIdentity& identity, const LongWork* work) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<StartingControl>(identity, work));
  services.push_back(std::make_unique<StartingData>(work));
  return services;
}

}  // namespace eps::server
