#include "eps_server/service/control_service.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/protocol_version.h"
#include "common/choices/choices.h"
#include "common/grpc/grpc_status.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/service/serving_host.h"
#include "eps_server/service/training_host.h"
#include "eps_server/step/coordinator.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"

namespace eps::server {
namespace {

using absl::StatusCode;

constexpr uint64_t kControlIncarnation = 99;
constexpr int kMostWorkers = 4;

// Keeps what it is told.
class FakeCoordinator final : public Coordinator {
 public:
  Aggregator& aggregator() override { std::abort(); }
  absl::Duration lease() const override { return absl::Milliseconds(1500); }
  absl::Status ExpectWorkers(int workers) override {
    MutexLock lock(mu);
    expected = workers;
    return absl::OkStatus();
  }
  absl::StatusOr<WorkerId> Attach(WorkerInfo info) override {
    MutexLock lock(mu);
    infos.push_back(std::move(info));
    return WorkerId(7);
  }
  absl::Status Connect(WorkerId worker, std::shared_ptr<WorkerChannel> connected) override {
    if (worker != WorkerId(7)) return absl::NotFoundError("worker_id: unknown");
    MutexLock lock(mu);
    channel = std::move(connected);
    return absl::OkStatus();
  }
  absl::Status Heartbeat(WorkerId) override { return absl::OkStatus(); }
  Choices HeldChoices(const std::string& device_model) const override {
    return device_model == "cuda X" ? Choices{{"product", "1"}} : Choices();
  }
  absl::StatusOr<Choices> OfferChoices(WorkerId, Choices choices) override {
    MutexLock lock(mu);
    offered = std::move(choices);
    return Choices{{"product", "1"}};
  }
  absl::Status Ready(WorkerId, WorkerMemory memory) override {
    std::shared_ptr<WorkerChannel> to;
    {
      MutexLock lock(mu);
      arena_bytes = memory.device_arena_bytes;
      group_kind = memory.group_kind;
      to = channel;
    }
    auto assignment = std::make_shared<Assignment>();
    assignment->step = StepId(5);
    assignment->counted_tokens = 3;
    assignment->vnodes = {{.vnode = 1, .tokens = {4, 5, 6}, .labels = {5, 6, -100}}};
    to->SendAssignment(std::move(assignment));
    return absl::OkStatus();
  }
  absl::Status PassDone(WorkerId, StepId step, std::vector<VnodeRecord> done, PassTiming timing) override {
    std::shared_ptr<WorkerChannel> to;
    {
      MutexLock lock(mu);
      records = std::move(done);
      last_timing = std::move(timing);
      to = channel;
    }
    if (step != StepId(5)) return absl::InvalidArgumentError("pass_done.step: a future one");
    to->SendFinish({.ok = true, .reason = "all done", .run_may_go_on = true});
    return absl::OkStatus();
  }
  absl::Status EvaluationDone(WorkerId, Version version, int64_t round, std::vector<VnodeRecord> done,
                              PassTiming) override {
    std::shared_ptr<WorkerChannel> to;
    {
      MutexLock lock(mu);
      records = std::move(done);
      evaluated = {version, round};
      to = channel;
    }
    to->SendFinish({.ok = true, .reason = "all done", .run_may_go_on = true});
    return absl::OkStatus();
  }
  absl::Status ReportGroup(WorkerId, const GroupReport& report) override {
    std::shared_ptr<WorkerChannel> to;
    {
      MutexLock lock(mu);
      group_reports.push_back(report);
      to = channel;
    }
    to->SendGroupOrder(
        {.kind = GroupOrder::Kind::kJoin, .group = report.group, .rank = 1, .size = 2, .token = report.text});
    return absl::OkStatus();
  }
  absl::Status Leave(WorkerId worker) override {
    std::shared_ptr<WorkerChannel> to;
    {
      MutexLock lock(mu);
      to = channel;
    }
    EXPECT_EQ(worker, WorkerId(7));
    to->SendFinish({.ok = true, .reason = "it asked to leave"});
    return absl::OkStatus();
  }
  absl::Status Drain(absl::Span<const WorkerId> workers) override {
    MutexLock lock(mu);
    drained.assign(workers.begin(), workers.end());
    return absl::FailedPreconditionError("no other worker would be left");
  }
  void Disconnect(WorkerId, absl::Status why) override {
    MutexLock lock(mu);
    disconnected = std::move(why);
    gone = true;
    changed.NotifyAll();
  }
  RunStatus Status() const override {
    RunStatus status;
    {
      MutexLock lock(mu);
      status.phase = phase;
    }
    status.step = 3;
    status.loss = 2.5;
    status.wait_fraction = {{"pull", 0.5}};
    status.workers = {WorkerStatus{.id = WorkerId(7), .vnodes = {1}}};
    return status;
  }
  std::vector<double> Losses() const override { return {}; }
  void RequestCheckpoint(std::function<void(absl::StatusOr<std::string>)> done) override { done(checkpoint); }
  void ExpectReturn() override {}
  absl::StatusOr<int64_t> RequestStop(std::string reason) override {
    MutexLock lock(mu);
    stop_reason = std::move(reason);
    return 4;
  }
  void Fail(absl::Status) override {}
  absl::Status WaitUntilFinished() override { return absl::OkStatus(); }

  absl::Status WaitForDisconnect() {
    MutexLock lock(mu);
    while (!gone) changed.Wait(mu);
    return disconnected;
  }

  absl::StatusOr<std::string> checkpoint = std::string("/out/checkpoints/step-00000012");
  mutable Mutex mu;
  CondVar changed;
  int expected = 0;
  std::vector<WorkerId> drained;
  RunPhase phase = RunPhase::kTraining;
  std::vector<WorkerInfo> infos;
  std::shared_ptr<WorkerChannel> channel;
  int64_t arena_bytes = 0;
  std::string group_kind;
  std::vector<GroupReport> group_reports;
  Choices offered;
  std::vector<VnodeRecord> records;
  std::pair<Version, int64_t> evaluated;
  PassTiming last_timing;
  absl::Status disconnected;
  bool gone = false;
  std::string stop_reason;
};

class ControlServiceTest : public testing::Test {
 protected:
  ControlServiceTest() : host_(coordinator_) {
    Start({.identity = {.incarnation = kControlIncarnation, .run = "books"},
           .run_config = "the run",
           .host = &host_,
           .coordinator = &coordinator_,
           .most_workers = kMostWorkers});
  }

  void Start(ControlServiceOptions options) {
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(NewControlService(std::move(options)));
    server_ = RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 1 << 20).value();
    stub_ = proto::Control::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  using Stream = grpc::ClientReaderWriter<proto::WorkerEvent, proto::DaemonEvent>;
  static proto::WorkerEvent Event(int64_t worker = 7) {
    proto::WorkerEvent event;
    event.set_incarnation(kControlIncarnation);
    event.set_worker_id(worker);
    event.mutable_heartbeat();
    return event;
  }
  // What the stream ends with after `events`.
  absl::Status EndAfter(const std::vector<proto::WorkerEvent>& events) {
    grpc::ClientContext context;
    const auto stream = stub_->Events(&context);
    for (const auto& event : events) stream->Write(event);
    proto::DaemonEvent answer;
    while (stream->Read(&answer)) {
    }
    return FromGrpc(stream->Finish());
  }

  FakeCoordinator coordinator_;
  TrainingHost host_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<proto::Control::Stub> stub_;
};

TEST_F(ControlServiceTest, AWorkerOfAnotherProtocolVersionIsRefusedWithBothNamed) {
  grpc::ClientContext context;
  proto::AttachRequest request;
  request.set_protocol_version(kProtocolVersion + 41);
  proto::AttachReply reply;
  const absl::Status status = FromGrpc(stub_->Attach(&context, request, &reply));
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition, "protocol_version"));
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition, std::to_string(kProtocolVersion + 41)));
  EXPECT_TRUE(coordinator_.infos.empty());
}

TEST_F(ControlServiceTest, AnAttachedWorkerGetsItsIdLeaseAndRun) {
  grpc::ClientContext context;
  proto::AttachRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_device_name("cpu");
  request.set_device_cap_bytes(1000);
  request.set_threads(3);
  request.set_metrics_address("0.0.0.0:9465");  // where the call comes from
  proto::AttachReply reply;
  ASSERT_OK(FromGrpc(stub_->Attach(&context, request, &reply)));
  EXPECT_EQ(reply.worker_id(), 7);
  EXPECT_EQ(reply.incarnation(), kControlIncarnation);
  EXPECT_EQ(reply.run_config(), "the run");
  EXPECT_EQ(reply.lease_millis(), 1500);
  EXPECT_FALSE(reply.serving());
  ASSERT_EQ(coordinator_.infos.size(), 1u);
  EXPECT_EQ(coordinator_.infos[0].device_name, "cpu");
  EXPECT_EQ(coordinator_.infos[0].device_cap_bytes, 1000);
  EXPECT_EQ(coordinator_.infos[0].threads, 3);
  EXPECT_EQ(coordinator_.infos[0].metrics_address, "127.0.0.1:9465");
}

TEST_F(ControlServiceTest, WhatIsSaidOfGroupsPassesThroughTheStream) {
  grpc::ClientContext context;
  const auto stream = stub_->Events(&context);
  ASSERT_TRUE(stream->Write(Event()));
  proto::WorkerEvent event = Event();
  event.mutable_ready()->set_transport("grpc");
  event.mutable_ready()->set_group_kind("nccl on this host");
  ASSERT_TRUE(stream->Write(event));
  proto::DaemonEvent answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_FALSE(answer.assign().has_group());
  event = Event();
  event.mutable_group_founded()->set_group(0x8000000000000001u);
  event.mutable_group_founded()->set_token(std::string("a\0b", 3));
  ASSERT_TRUE(stream->Write(event));
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.join_group().group(), 0x8000000000000001u);
  EXPECT_EQ(answer.join_group().rank(), 1);
  EXPECT_EQ(answer.join_group().size(), 2);
  EXPECT_EQ(answer.join_group().token(), std::string("a\0b", 3));
  event = Event();
  event.mutable_group_failed()->set_group(5);
  event.mutable_group_failed()->set_message(std::string(5000, 'w'));
  ASSERT_TRUE(stream->Write(event));
  ASSERT_TRUE(stream->Read(&answer));
  // What the coordinator sends with an assignment, and at an end.
  std::shared_ptr<WorkerChannel> channel;
  {
    MutexLock lock(coordinator_.mu);
    EXPECT_EQ(coordinator_.group_kind, "nccl on this host");
    ASSERT_EQ(coordinator_.group_reports.size(), 2u);
    EXPECT_EQ(coordinator_.group_reports[1].kind, GroupReport::Kind::kFailed);
    EXPECT_EQ(coordinator_.group_reports[1].text, std::string(4096, 'w'));
    channel = coordinator_.channel;
  }
  auto assignment = std::make_shared<Assignment>();
  assignment->group = GroupVnodes{.group = 9, .rank = 1, .vnodes = {{0}, {1, 2}}};
  channel->SendAssignment(assignment);
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.assign().group().group(), 9u);
  EXPECT_EQ(answer.assign().group().rank(), 1);
  ASSERT_EQ(answer.assign().group().members_size(), 2);
  EXPECT_EQ(answer.assign().group().members(1).vnodes(1), 2);
  channel->SendGroupOrder({.kind = GroupOrder::Kind::kEnd, .group = 9, .reason = "it broke"});
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.end_group().group(), 9u);
  EXPECT_EQ(answer.end_group().reason(), "it broke");
  channel->SendGroupOrder({.kind = GroupOrder::Kind::kFound, .group = 11, .size = 4});
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.found_group().size(), 4);
  context.TryCancel();
}

TEST_F(ControlServiceTest, AnAttachedWorkerGetsTheChoicesOfItsDeviceModel) {
  for (const std::string model : {"cuda X", "cuda Y"}) {
    grpc::ClientContext context;
    proto::AttachRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_device_model(model);
    request.set_device_cap_bytes(1000);
    proto::AttachReply reply;
    ASSERT_OK(FromGrpc(stub_->Attach(&context, request, &reply)));
    ASSERT_EQ(reply.choices_size(), model == "cuda X" ? 1 : 0);
    if (reply.choices_size() == 0) continue;
    EXPECT_EQ(reply.choices(0).key(), "product");
    EXPECT_EQ(reply.choices(0).value(), "1");
  }
}

TEST_F(ControlServiceTest, OfferedChoicesAreAnsweredWithThoseThatHold) {
  grpc::ClientContext context;
  const auto stream = stub_->Events(&context);
  ASSERT_TRUE(stream->Write(Event()));
  proto::WorkerEvent event = Event();
  proto::Choice& choice = *event.mutable_choices()->add_choices();
  choice.set_key("product");
  choice.set_value("2");
  ASSERT_TRUE(stream->Write(event));
  proto::DaemonEvent answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.incarnation(), kControlIncarnation);
  ASSERT_EQ(answer.choices().choices_size(), 1);
  EXPECT_EQ(answer.choices().choices(0).key(), "product");
  EXPECT_EQ(answer.choices().choices(0).value(), "1");
  stream->WritesDone();
  EXPECT_OK(FromGrpc(stream->Finish()));
  MutexLock lock(coordinator_.mu);
  EXPECT_EQ(coordinator_.offered, (Choices{{"product", "2"}}));
}

TEST_F(ControlServiceTest, OrdersAndReportsPassThroughTheStream) {
  grpc::ClientContext context;
  const auto stream = stub_->Events(&context);
  ASSERT_TRUE(stream->Write(Event()));
  proto::WorkerEvent event = Event();
  event.mutable_ready()->set_device_arena_bytes(555);
  event.mutable_ready()->set_transport("shared_memory");
  ASSERT_TRUE(stream->Write(event));
  proto::DaemonEvent answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.incarnation(), kControlIncarnation);
  EXPECT_EQ(answer.assign().step(), 5);
  EXPECT_EQ(answer.assign().counted_tokens(), 3);
  ASSERT_EQ(answer.assign().vnodes_size(), 1);
  EXPECT_EQ(answer.assign().vnodes(0).tokens(), std::string("\4\0\0\0\5\0\0\0\6\0\0\0", 12));
  EXPECT_EQ(answer.assign().vnodes(0).labels(), std::string("\5\0\0\0\6\0\0\0\x9c\xff\xff\xff", 12));

  event = Event();
  event.mutable_pass_done()->set_step(5);
  proto::Record& record = *event.mutable_pass_done()->add_records();
  record.set_vnode(1);
  record.set_loss_sum(1.25);
  record.set_counted_tokens(2);
  record.set_finite(true);
  (*event.mutable_pass_done()->mutable_wait_seconds())["pull"] = 0.5;
  ASSERT_TRUE(stream->Write(event));
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.finish().ok());
  EXPECT_EQ(answer.finish().reason(), "all done");
  EXPECT_TRUE(answer.finish().run_may_go_on());
  stream->WritesDone();
  EXPECT_OK(FromGrpc(stream->Finish()));
  EXPECT_OK(coordinator_.WaitForDisconnect());  // it was told to leave
  EXPECT_EQ(coordinator_.arena_bytes, 555);
  ASSERT_EQ(coordinator_.records.size(), 1u);
  EXPECT_EQ(coordinator_.records[0].loss_sum, 1.25);
  EXPECT_EQ(coordinator_.last_timing.wait_seconds.at("pull"), 0.5);
}

TEST_F(ControlServiceTest, RecordsOfAnEvaluationAreToldAsThat) {
  grpc::ClientContext context;
  const auto stream = stub_->Events(&context);
  ASSERT_TRUE(stream->Write(Event()));
  proto::WorkerEvent event = Event();
  event.mutable_pass_done()->set_step(4);
  event.mutable_pass_done()->set_evaluation_round(2);
  proto::Record& record = *event.mutable_pass_done()->add_records();
  record.set_counted_tokens(3);
  record.set_correct(1);
  record.set_chosen_reward(0.75);
  record.set_rejected_reward(-1.5);
  ASSERT_TRUE(stream->Write(event));
  proto::DaemonEvent answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.finish().ok());
  stream->WritesDone();
  EXPECT_OK(FromGrpc(stream->Finish()));
  MutexLock lock(coordinator_.mu);
  EXPECT_EQ(coordinator_.evaluated, std::make_pair(Version(4), int64_t{2}));
  ASSERT_EQ(coordinator_.records.size(), 1u);
  EXPECT_EQ(coordinator_.records[0].correct, 1);
  EXPECT_EQ(coordinator_.records[0].chosen_reward, 0.75);
  EXPECT_EQ(coordinator_.records[0].rejected_reward, -1.5);
}

TEST_F(ControlServiceTest, AWrongEventEndsTheStreamAndNamesTheField) {
  proto::WorkerEvent event = Event();
  event.set_incarnation(1);
  EXPECT_THAT(EndAfter({event}), StatusIs(StatusCode::kFailedPrecondition, "incarnation"));
  EXPECT_THAT(EndAfter({Event(8)}), StatusIs(StatusCode::kNotFound, "worker_id"));
  event = Event();
  event.mutable_ready()->set_transport("grpc");
  EXPECT_THAT(EndAfter({event}), StatusIs(StatusCode::kInvalidArgument, "heartbeat"));
  EXPECT_THAT(EndAfter({Event(), Event(8)}), StatusIs(StatusCode::kInvalidArgument, "worker_id"));
  event = Event();
  event.clear_event();
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "event"));
  event.mutable_ready()->set_host_bytes(-1);
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "ready.host_bytes"));
  event.mutable_ready()->set_host_bytes(0);
  event.mutable_ready()->set_transport("carrier pigeon");
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "ready.transport"));
  event.mutable_choices()->add_choices()->set_key("product");
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "choices[0].value: 0 bytes"));
  event.mutable_pass_done()->set_device_peak_bytes(-1);
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "pass_done.device_peak_bytes"));
  event.mutable_pass_done()->set_device_peak_bytes(0);
  event.mutable_pass_done()->set_device_outside_bytes(-1);
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "pass_done.device_outside_bytes"));
  event.mutable_pass_done()->set_device_outside_bytes(0);
  event.mutable_pass_done()->set_seconds(-1);
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "pass_done.seconds"));
  event.mutable_pass_done()->set_seconds(1);
  (*event.mutable_pass_done()->mutable_wait_seconds())["coffee"] = 1;
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "wait_seconds"));
  event.mutable_pass_done()->clear_wait_seconds();
  event.mutable_pass_done()->set_step(6);
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kInvalidArgument, "pass_done.step"));
  event.mutable_inferred();
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kFailedPrecondition, "inferred"));
}

TEST_F(ControlServiceTest, AWorkerThatLeavesUnaskedIsReported) {
  EXPECT_OK([&] {
    grpc::ClientContext context;
    const auto stream = stub_->Events(&context);
    stream->Write(Event());
    stream->WritesDone();
    return FromGrpc(stream->Finish());
  }());
  EXPECT_THAT(coordinator_.WaitForDisconnect(), StatusIs(StatusCode::kUnavailable, "has left"));
}

TEST_F(ControlServiceTest, AWorkerThatAsksToLeaveIsLetGo) {
  {
    grpc::ClientContext context;
    const auto stream = stub_->Events(&context);
    ASSERT_TRUE(stream->Write(Event()));
    proto::WorkerEvent leave = Event();
    leave.mutable_leave();
    ASSERT_TRUE(stream->Write(leave));
    proto::DaemonEvent answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_TRUE(answer.finish().ok());
    stream->WritesDone();
    EXPECT_OK(FromGrpc(stream->Finish()));
  }
  EXPECT_OK(coordinator_.WaitForDisconnect());
}

TEST_F(ControlServiceTest, TheNumberOfExpectedWorkersIsPassedOn) {
  grpc::ClientContext context;
  proto::ExpectWorkersRequest request;
  request.set_workers(3);
  proto::ExpectWorkersReply reply;
  EXPECT_OK(FromGrpc(stub_->ExpectWorkers(&context, request, &reply)));
  EXPECT_EQ(coordinator_.expected, 3);
}

TEST_F(ControlServiceTest, AFailedWorkerIsDisconnectedWithItsReason) {
  proto::WorkerEvent event = Event();
  event.mutable_failed()->set_message("out of luck");
  EXPECT_THAT(EndAfter({Event(), event}), StatusIs(StatusCode::kAborted, "out of luck"));
  EXPECT_THAT(coordinator_.WaitForDisconnect(), StatusIs(StatusCode::kAborted, "out of luck"));
}

TEST_F(ControlServiceTest, ABrokenConnectionDisconnectsTheWorker) {
  {
    grpc::ClientContext context;
    const auto stream = stub_->Events(&context);
    ASSERT_TRUE(stream->Write(Event()));
    proto::WorkerEvent ready = Event();
    ready.mutable_ready()->set_transport("grpc");
    ASSERT_TRUE(stream->Write(ready));
    proto::DaemonEvent answer;
    ASSERT_TRUE(stream->Read(&answer));
    context.TryCancel();
    (void)stream->Finish();
  }
  EXPECT_THAT(coordinator_.WaitForDisconnect(), StatusIs(StatusCode::kUnavailable));
}

TEST_F(ControlServiceTest, WorkersAreAskedForOfWhoSaysThatItStartsThem) {
  const auto ask = [&](int workers) -> absl::StatusOr<int64_t> {
    grpc::ClientContext context;
    proto::StartWorkersRequest request;
    request.set_workers(workers);
    proto::StartWorkersReply reply;
    const absl::Status status = FromGrpc(stub_->StartWorkers(&context, request, &reply));
    if (!status.ok()) return status;
    return reply.number();
  };
  const auto look = [&](int64_t order, const std::string& failure = "") {
    grpc::ClientContext context;
    proto::WorkerStarter starter;
    starter.set_order(order);
    starter.set_is_over(!failure.empty());
    starter.set_failure(failure);
    proto::StatusReply reply;
    EXPECT_OK(FromGrpc(stub_->FollowOrders(&context, starter, &reply)));
    EXPECT_EQ(reply.state(), "training");
    return reply.start_order();
  };
  {
    grpc::ClientContext context;
    proto::StatusReply reply;
    ASSERT_OK(FromGrpc(stub_->GetStatus(&context, {}, &reply)));
    EXPECT_EQ(reply.start_order().number(), 0);
  }
  EXPECT_THAT(ask(1), StatusIs(StatusCode::kFailedPrecondition, "nobody starts workers"));
  EXPECT_EQ(look(0).number(), 0);
  EXPECT_THAT(ask(3), IsOkAndHolds(1));
  EXPECT_THAT(ask(kMostWorkers + 1), StatusIs(StatusCode::kInvalidArgument, "workers: 5, must be 1 to 4"));
  EXPECT_EQ(look(0).workers(), 3);
  const proto::StartOrder given_up = look(1, "it does not fit");
  EXPECT_TRUE(given_up.is_over());
  EXPECT_EQ(given_up.failure(), "it does not fit");
  {
    MutexLock lock(coordinator_.mu);
    coordinator_.phase = RunPhase::kFinishing;
  }
  EXPECT_THAT(ask(3), StatusIs(StatusCode::kFailedPrecondition, "the run neither trains nor waits for workers"));
}

TEST_F(ControlServiceTest, ACheckpointThatFailsIsAnsweredByADaemonThatIsThere) {
  coordinator_.checkpoint = absl::UnavailableError("cannot write \"x\": No space left on device");
  grpc::ClientContext context;
  proto::CheckpointReply reply;
  EXPECT_THAT(FromGrpc(stub_->Checkpoint(&context, {}, &reply)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "No space left on device"));
}

TEST_F(ControlServiceTest, StatusCheckpointStopAndDrainAreAnswered) {
  {
    grpc::ClientContext context;
    proto::StatusReply reply;
    ASSERT_OK(FromGrpc(stub_->GetStatus(&context, {}, &reply)));
    EXPECT_EQ(reply.state(), "training");
    EXPECT_EQ(reply.step(), 3);
    EXPECT_EQ(reply.loss(), 2.5);
    EXPECT_EQ(reply.wait_fraction().at("pull"), 0.5);
    EXPECT_EQ(reply.incarnation(), kControlIncarnation);
    EXPECT_EQ(reply.run(), "books");
    ASSERT_EQ(reply.workers_size(), 1);
    EXPECT_EQ(reply.workers(0).vnodes(0), 1);
  }
  {
    grpc::ClientContext context;
    proto::CheckpointReply reply;
    ASSERT_OK(FromGrpc(stub_->Checkpoint(&context, {}, &reply)));
    EXPECT_EQ(reply.path(), "/out/checkpoints/step-00000012");
    EXPECT_EQ(reply.step(), 12);
  }
  {
    grpc::ClientContext context;
    proto::StopRequest request;
    request.set_reason("enough");
    proto::StopReply reply;
    ASSERT_OK(FromGrpc(stub_->Stop(&context, request, &reply)));
    EXPECT_EQ(reply.step(), 4);
    EXPECT_EQ(coordinator_.stop_reason, "enough");
  }
  for (const std::vector<int64_t>& workers : {std::vector<int64_t>{7, 3}, {}}) {
    grpc::ClientContext context;
    proto::DrainRequest request;
    request.mutable_worker_id()->Add(workers.begin(), workers.end());
    proto::DrainReply reply;
    const absl::Status status = FromGrpc(stub_->Drain(&context, request, &reply));
    if (workers.empty()) {
      EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, "worker_id: 0 are given, must be 1 to 4096"));
      continue;
    }
    EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition, "no other worker"));
    EXPECT_EQ(coordinator_.drained, (std::vector<WorkerId>{WorkerId(7), WorkerId(3)}));
  }
  {
    grpc::ClientContext context;
    const auto stream = stub_->Generate(&context, {});
    proto::GenerateReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    EXPECT_THAT(FromGrpc(stream->Finish()), StatusIs(StatusCode::kFailedPrecondition, "trains"));
  }
}

TEST(ServingControlServiceTest, TextComesFromAnAttachedWorkerTokenByToken) {
  RunConfig run;
  run.model.vocab = 5;
  run.model.context = 4;
  ServingHost serving(run);
  bool stopped = false;
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(NewControlService({.identity = {.incarnation = kControlIncarnation, .run = "books"},
                                        .run_config = "the run",
                                        .host = &serving,
                                        .serving = &serving,
                                        .on_stop = [&](const std::string&) { stopped = true; }}));
  ASSERT_OK_AND_ASSIGN(const auto server, RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0));
  const auto stub = proto::Control::NewStub(grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));

  // Asked before there is a worker: it waits.
  grpc::ClientContext generate_context;
  proto::GenerateRequest generate;
  generate.add_prompt(1);
  generate.set_max_tokens(3);
  const auto text = stub->Generate(&generate_context, generate);

  proto::AttachRequest attach;
  attach.set_protocol_version(kProtocolVersion);
  attach.set_device_cap_bytes(1);
  attach.set_device_model("test");
  proto::AttachReply attached;
  grpc::ClientContext attach_context;
  ASSERT_OK(FromGrpc(stub->Attach(&attach_context, attach, &attached)));
  EXPECT_TRUE(attached.serving());
  grpc::ClientContext events_context;
  const auto events = stub->Events(&events_context);
  proto::WorkerEvent event;
  event.set_incarnation(kControlIncarnation);
  event.set_worker_id(attached.worker_id());
  event.mutable_heartbeat();
  ASSERT_TRUE(events->Write(event));
  event.mutable_ready()->set_transport("grpc");
  ASSERT_TRUE(events->Write(event));
  for (int32_t token = 2; token < 5; ++token) {
    proto::DaemonEvent order;
    ASSERT_TRUE(events->Read(&order));
    EXPECT_EQ(order.infer().tokens().size(), 4u * (token - 1));
    std::vector<float> logits(5, 0);
    logits[token] = 3;
    event.mutable_inferred()->set_request_id(order.infer().request_id());
    event.mutable_inferred()->set_logits(logits.data(), logits.size() * sizeof(float));
    ASSERT_TRUE(events->Write(event));
    proto::GenerateReply reply;
    ASSERT_TRUE(text->Read(&reply));
    EXPECT_EQ(reply.token(), token);
  }
  proto::GenerateReply reply;
  EXPECT_FALSE(text->Read(&reply));
  EXPECT_OK(FromGrpc(text->Finish()));

  grpc::ClientContext stop_context;
  proto::StopReply stop_reply;
  EXPECT_OK(FromGrpc(stub->Stop(&stop_context, {}, &stop_reply)));
  EXPECT_TRUE(stopped);
  event.mutable_choices();
  ASSERT_TRUE(events->Write(event));
  EXPECT_THAT(FromGrpc(events->Finish()), StatusIs(StatusCode::kFailedPrecondition, "event: choices"));
}

}  // namespace
}  // namespace eps::server
