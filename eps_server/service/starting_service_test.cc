#include "eps_server/service/starting_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/long_work.h"
#include "common/base/protocol_version.h"
#include "common/grpc/grpc_status.h"
#include "common/testing/status_matchers.h"
#include "eps_server/service/rpc_server.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "proto/data_plane.grpc.pb.h"

namespace eps::server {
namespace {

using absl::StatusCode;

constexpr uint64_t kStartingIncarnation = 77;

// What a daemon says once it has started.
class StartedControl final : public proto::Control::CallbackService {
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const proto::StatusRequest*,
                                      proto::StatusReply* reply) override {
    reply->set_state("training");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class StartingServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = RpcServer::Start({.host = "127.0.0.1", .port = 0},
                               NewStartingServices({.incarnation = kStartingIncarnation, .run = "books"}, &work_), 0)
                  .value();
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    control_ = proto::Control::NewStub(channel_);
  }

  template <typename Request, typename Reply>
  absl::Status Call(grpc::Status (proto::Control::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply* reply) {
    grpc::ClientContext context;
    return FromGrpc((control_.get()->*method)(&context, request, reply));
  }
  template <typename Request, typename Reply>
  absl::Status Refusal(grpc::Status (proto::Control::Stub::*method)(grpc::ClientContext*, const Request&, Reply*)) {
    Reply reply;
    return Call(method, Request(), &reply);
  }
  absl::StatusOr<proto::StatusReply> Status() {
    proto::StatusReply reply;
    const absl::Status asked = Call(&proto::Control::Stub::GetStatus, proto::StatusRequest(), &reply);
    if (!asked.ok()) return asked;
    return reply;
  }

  LongWork work_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Control::Stub> control_;
};

TEST_F(StartingServiceTest, StatusSaysWhatIsDoneAndHowFarItIs) {
  ASSERT_OK_AND_ASSIGN(proto::StatusReply status, Status());
  EXPECT_EQ(status.state(), "starting");
  EXPECT_EQ(status.incarnation(), kStartingIncarnation);
  EXPECT_EQ(status.run(), "books");
  EXPECT_TRUE(status.has_start_work());
  EXPECT_EQ(status.start_work().what(), "");
  work_.Begin("reading the checkpoint", 1000);
  ASSERT_OK(work_.Add(250));
  ASSERT_OK_AND_ASSIGN(status, Status());
  EXPECT_EQ(status.start_work().what(), "reading the checkpoint");
  EXPECT_EQ(status.start_work().done_bytes(), 250);
  EXPECT_EQ(status.start_work().total_bytes(), 1000);
}

TEST_F(StartingServiceTest, AWorkerIsToldToAskAgain) {
  work_.Begin("reading the checkpoint", 4 << 20);
  proto::AttachRequest request;
  request.set_protocol_version(kProtocolVersion);
  proto::AttachReply reply;
  ASSERT_OK(Call(&proto::Control::Stub::Attach, request, &reply));
  EXPECT_EQ(reply.starting(), "reading the checkpoint, 0 B of 4.0 MiB");
  EXPECT_EQ(reply.worker_id(), 0);
}

TEST_F(StartingServiceTest, AWorkerOfAnotherVersionNeedNotWait) {
  proto::AttachRequest request;
  request.set_protocol_version(kProtocolVersion + 1);
  proto::AttachReply reply;
  EXPECT_THAT(Call(&proto::Control::Stub::Attach, request, &reply),
              StatusIs(StatusCode::kFailedPrecondition, "protocol_version"));
}

TEST_F(StartingServiceTest, EverythingElseIsToBeAskedAgain) {
  work_.Begin("tokenizing books.txt");
  const auto is_refused = StatusIs(StatusCode::kFailedPrecondition, "tokenizing books.txt");
  const auto is_lost = StatusIs(StatusCode::kUnavailable, "tokenizing books.txt");
  EXPECT_THAT(Refusal(&proto::Control::Stub::Checkpoint), is_refused);
  EXPECT_THAT(Refusal(&proto::Control::Stub::Stop), is_refused);
  EXPECT_THAT(Refusal(&proto::Control::Stub::Drain), is_refused);
  EXPECT_THAT(Refusal(&proto::Control::Stub::ExpectWorkers), is_refused);
  EXPECT_THAT(Refusal(&proto::Control::Stub::StartWorkers), is_refused);
  grpc::ClientContext text_context, events_context, pull_context, push_context;
  proto::GenerateReply token;
  const auto text = control_->Generate(&text_context, proto::GenerateRequest());
  EXPECT_FALSE(text->Read(&token));
  EXPECT_THAT(FromGrpc(text->Finish()), is_refused);
  EXPECT_THAT(FromGrpc(control_->Events(&events_context)->Finish()), is_lost);
  // A worker of the daemon before retries for UNAVAILABLE, and for nothing else.
  const auto data = proto::DataPlane::NewStub(channel_);
  EXPECT_THAT(FromGrpc(data->Pull(&pull_context)->Finish()), is_lost);
  EXPECT_THAT(FromGrpc(data->Push(&push_context)->Finish()), is_lost);
}

TEST_F(StartingServiceTest, OnceTheDaemonHasStartedTheSameChannelReachesIt) {
  const std::string address = server_->address();
  ASSERT_OK_AND_ASSIGN(proto::StatusReply status, Status());
  EXPECT_EQ(status.state(), "starting");
  // A call that is under way ends, and holds nothing up.
  grpc::ClientContext events_context;
  const auto events = control_->Events(&events_context);
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<StartedControl>());
  ASSERT_OK(server_->Replace(std::move(services), 0));
  EXPECT_EQ(server_->address(), address);
  EXPECT_FALSE(events->Finish().ok());
  // The connection from before may break under the first call that does not know of it yet.
  absl::StatusOr<proto::StatusReply> next = Status();
  if (!next.ok()) next = Status();
  ASSERT_OK(next.status());
  EXPECT_EQ(next->state(), "training");
  const auto another = proto::Control::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  ASSERT_OK(FromGrpc(another->GetStatus(&context, proto::StatusRequest(), &status)));
  EXPECT_EQ(status.state(), "training");
}

}  // namespace
}  // namespace eps::server
