#include "gpu_worker/transport/grpc_control.h"

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/protocol_version.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/transport/control.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "proto/data_plane.grpc.pb.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

constexpr uint64_t kControlIncarnation = 7;

// Answers and sends what the test says, right or wrong.
class ScriptedControl final : public proto::Control::Service {
 public:
  using Stream = grpc::ServerReaderWriter<proto::DaemonEvent, proto::WorkerEvent>;
  std::function<grpc::Status(const proto::AttachRequest&, proto::AttachReply&)> attach;
  std::function<grpc::Status(Stream&)> events;

  grpc::Status Attach(grpc::ServerContext*, const proto::AttachRequest* request, proto::AttachReply* reply) override {
    return attach(*request, *reply);
  }
  grpc::Status Events(grpc::ServerContext*, Stream* stream) override { return events(*stream); }
};

class GrpcControlTest : public testing::Test {
 protected:
  GrpcControlTest() {
    attachment_.worker_id = WorkerId(3);
    attachment_.incarnation = kControlIncarnation;
    attachment_.run.model = {.num_layers = 1, .d_model = 4, .num_heads = 1, .context = 3, .vocab = 10};
    attachment_.run.steps = 4;
    attachment_.lease = absl::Hours(1);  // no heartbeats but the first
  }
  void TearDown() override { End(); }
  void End() {
    control_.reset();
    if (server_ != nullptr) server_->Shutdown();
  }

  void Serve(grpc::Service& service) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  absl::StatusOr<AttachAnswer> Attach(absl::Duration timeout = absl::Seconds(20)) {
    return GrpcAttach(address_,
                      {.device_name = "cpu",
                       .device_model = "a model",
                       .device_cap_bytes = 1000,
                       .threads = 2,
                       .metrics_address = "127.0.0.1:9465"},
                      timeout);
  }
  absl::StatusOr<AttachAnswer> AttachAnswered(
      std::function<grpc::Status(const proto::AttachRequest&, proto::AttachReply&)> answer) {
    daemon_.attach = std::move(answer);
    Serve(daemon_);
    return Attach();
  }

  // The worker's side of `events`, which is a thread's.
  void Open(std::function<grpc::Status(ScriptedControl::Stream&)> events) {
    daemon_.events = std::move(events);
    Serve(daemon_);
    auto control = OpenGrpcControl(address_, attachment_,
                                   {.on_lost =
                                        [this](absl::Status why) {
                                          MutexLock lock(mu_);
                                          lost_.push_back(std::move(why));
                                          changed_.NotifyAll();
                                        },
                                    .on_group_end =
                                        [this](uint64_t group, absl::Status why) {
                                          MutexLock lock(mu_);
                                          ended_groups_.push_back(absl::StrCat(group, " ", why.message()));
                                          changed_.NotifyAll();
                                        }});
    ASSERT_OK(control);
    control_ = *std::move(control);
  }
  // Reads what the worker says, until it has said all.
  grpc::Status ReadAll(ScriptedControl::Stream& stream) {
    proto::WorkerEvent event;
    while (stream.Read(&event)) {
      MutexLock lock(mu_);
      events_.push_back(event);
    }
    return grpc::Status::OK;
  }
  static proto::DaemonEvent Event() {
    proto::DaemonEvent event;
    event.set_incarnation(kControlIncarnation);
    return event;
  }
  static proto::DaemonEvent FinishEvent() {
    proto::DaemonEvent event = Event();
    event.mutable_finish()->set_ok(true);
    event.mutable_finish()->set_reason("the run is over");
    return event;
  }

  void AwaitLost() {
    MutexLock lock(mu_);
    while (lost_.empty()) changed_.Wait(mu_);
  }
  // What on_lost was told; it is over then.
  std::vector<absl::Status> Lost() {
    End();
    MutexLock lock(mu_);
    return lost_;
  }
  // What the daemon was told; it is over then.
  std::vector<proto::WorkerEvent> Told() {
    End();
    MutexLock lock(mu_);
    return events_;
  }

  Attachment attachment_;
  ScriptedControl daemon_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Control> control_;
  Mutex mu_;
  CondVar changed_;
  std::vector<absl::Status> lost_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> ended_groups_ ABSL_GUARDED_BY(mu_);
  std::vector<proto::WorkerEvent> events_ ABSL_GUARDED_BY(mu_);
};

TEST_F(GrpcControlTest, AWorkerIntroducesItselfAndIsAttached) {
  proto::AttachRequest introduction;
  RunConfig run;
  run.model = attachment_.run.model;
  run.data.path = "/data";
  run.optimizer.peak_learning_rate = 0.1;
  run.steps = 1;
  ASSERT_OK_AND_ASSIGN(const AttachAnswer answer,
                       AttachAnswered([&](const proto::AttachRequest& request, proto::AttachReply& reply) {
                         MutexLock lock(mu_);
                         introduction = request;
                         reply.set_worker_id(12);
                         reply.set_incarnation(kControlIncarnation);
                         reply.set_lease_millis(1500);
                         reply.set_run_config(SerializeRunConfig(run));
                         return grpc::Status::OK;
                       }));
  const auto& attachment = std::get<Attachment>(answer);
  EXPECT_EQ(attachment.worker_id, WorkerId(12));
  EXPECT_EQ(attachment.incarnation, kControlIncarnation);
  EXPECT_EQ(attachment.lease, absl::Milliseconds(1500));
  EXPECT_EQ(attachment.run, run);
  MutexLock lock(mu_);
  EXPECT_EQ(introduction.protocol_version(), kProtocolVersion);
  EXPECT_EQ(introduction.device_name(), "cpu");
  EXPECT_EQ(introduction.device_model(), "a model");
  EXPECT_EQ(introduction.device_cap_bytes(), 1000);
  EXPECT_EQ(introduction.threads(), 2u);
  EXPECT_EQ(introduction.metrics_address(), "127.0.0.1:9465");
  EXPECT_EQ(introduction.process_id(), getpid());
}

TEST_F(GrpcControlTest, ADaemonThatStartsSaysWhatItDoes) {
  ASSERT_OK_AND_ASSIGN(const AttachAnswer answer,
                       AttachAnswered([](const proto::AttachRequest&, proto::AttachReply& reply) {
                         reply.set_starting("reading the checkpoint");
                         return grpc::Status::OK;
                       }));
  EXPECT_EQ(std::get<StartingDaemon>(answer).what, "reading the checkpoint");
}

TEST_F(GrpcControlTest, ARefusalComesThroughWithTheAddress) {
  const auto answer = AttachAnswered([](const proto::AttachRequest&, proto::AttachReply&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "protocol_version: the worker speaks 1");
  });
  EXPECT_THAT(answer, StatusIs(StatusCode::kFailedPrecondition,
                               absl::StrCat("attach to ", address_, ": protocol_version: the worker speaks 1")));
}

TEST_F(GrpcControlTest, AnAnswerThatMakesNoSenseIsRefusedByField) {
  const auto answer = AttachAnswered([](const proto::AttachRequest&, proto::AttachReply&) { return grpc::Status::OK; });
  EXPECT_THAT(answer,
              StatusIs(StatusCode::kInvalidArgument, absl::StrCat("attach to ", address_, ": its answer: worker_id")));
}

TEST_F(GrpcControlTest, AGrpcServerThatIsNoDaemonIsCalledSo) {
  proto::DataPlane::Service other;
  Serve(other);
  EXPECT_THAT(Attach(), StatusIs(StatusCode::kUnimplemented,
                                 absl::StrCat("attach to ", address_, ": a gRPC server is there, but no eps_server")));
  End();
}

TEST_F(GrpcControlTest, WhereNobodyListensItIsUnavailable) {
  Serve(daemon_);
  server_->Shutdown();
  EXPECT_THAT(Attach(), StatusIs(StatusCode::kUnavailable, absl::StrCat("attach to ", address_)));
}

TEST_F(GrpcControlTest, ADaemonThatDoesNotAnswerIsWaitedForForTheTimeGiven) {
  std::promise<void> over;
  daemon_.attach = [&](const proto::AttachRequest&, proto::AttachReply&) {
    over.get_future().wait();
    return grpc::Status::OK;
  };
  Serve(daemon_);
  EXPECT_THAT(Attach(absl::Milliseconds(50)), StatusIs(StatusCode::kDeadlineExceeded));
  over.set_value();
  End();
}

TEST_F(GrpcControlTest, AHeartbeatComesFirstAndWhatWasReportedIsSentBeforeTheStreamIsClosed) {
  Open([this](ScriptedControl::Stream& stream) { return ReadAll(stream); });
  control_->SendReady({.device_arena_bytes = 5, .transport = "grpc"});
  control_->SendPassDone({.step = StepId(2)});
  control_->SendInferred(8, absl::InternalError("broken"));
  control_->SendLeave();
  const std::vector<proto::WorkerEvent> told = Told();
  ASSERT_EQ(told.size(), 5u);
  for (const proto::WorkerEvent& event : told) {
    EXPECT_EQ(event.incarnation(), kControlIncarnation);
    EXPECT_EQ(event.worker_id(), 3);
  }
  EXPECT_TRUE(told[0].has_heartbeat());
  EXPECT_EQ(told[1].ready().device_arena_bytes(), 5);
  EXPECT_EQ(told[2].pass_done().step(), 2);
  EXPECT_EQ(told[3].inferred().request_id(), 8);
  EXPECT_EQ(told[3].inferred().error(), "INTERNAL: broken");
  EXPECT_TRUE(told[4].has_leave());
}

TEST_F(GrpcControlTest, AWorkerThatHasNothingToSaySendsHeartbeats) {
  attachment_.lease = absl::Milliseconds(60);
  int heartbeats = 0;
  Open([&](ScriptedControl::Stream& stream) {
    proto::WorkerEvent event;
    int read = 0;
    while (read < 4 && stream.Read(&event)) read += event.has_heartbeat();
    MutexLock lock(mu_);
    heartbeats = read;
    return grpc::Status::OK;
  });
  EXPECT_THAT(control_->Next(), StatusIs(StatusCode::kUnavailable, "the daemon ended the event stream"));
  const auto lost = Lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_THAT(lost[0], StatusIs(StatusCode::kUnavailable, "the daemon ended the event stream"));
  MutexLock lock(mu_);
  EXPECT_EQ(heartbeats, 4);
}

TEST_F(GrpcControlTest, WhyAWorkerFailsIsSentAndCutToWhatTheDaemonTakes) {
  Open([this](ScriptedControl::Stream& stream) { return ReadAll(stream); });
  control_->SendFailed(absl::InternalError(std::string(10000, 'x')));
  const std::vector<proto::WorkerEvent> told = Told();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].failed().message().size(), 4096u);
  EXPECT_EQ(told[1].failed().message().substr(0, 11), "INTERNAL: x");
}

TEST_F(GrpcControlTest, OrdersThatCameBeforeTheEndAreGivenBeforeItsReason) {
  Open([](ScriptedControl::Stream& stream) {
    proto::DaemonEvent infer = Event();
    infer.mutable_infer()->set_request_id(8);
    infer.mutable_infer()->set_tokens(std::string("\x01\0\0\0", 4));
    stream.Write(infer);
    stream.Write(FinishEvent());
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "the lease ran out");
  });
  AwaitLost();
  EXPECT_TRUE(control_->HasNext());
  ASSERT_OK_AND_ASSIGN(Order order, control_->Next());
  EXPECT_EQ(std::get<InferOrder>(order).tokens, std::vector<int32_t>{1});
  ASSERT_OK_AND_ASSIGN(order, control_->Next());
  EXPECT_EQ(std::get<FinishOrder>(order).reason, "the run is over");
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(control_->Next(), StatusIs(StatusCode::kNotFound, "the lease ran out"));
    EXPECT_TRUE(control_->HasNext());
  }
  EXPECT_EQ(Lost(), std::vector<absl::Status>{absl::NotFoundError("the lease ran out")});
}

TEST_F(GrpcControlTest, AnOrderThatMakesNoSenseEndsTheStreamAndIsTheReason) {
  Open([this](ScriptedControl::Stream& stream) {
    proto::DaemonEvent event = Event();
    event.mutable_infer();
    stream.Write(event);
    return ReadAll(stream);  // until the worker is gone
  });
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(control_->Next(), StatusIs(StatusCode::kInvalidArgument, "infer.tokens bytes: 0"));
  }
  const auto lost = Lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_THAT(lost[0], StatusIs(StatusCode::kInvalidArgument, "infer.tokens bytes: 0"));
}

TEST_F(GrpcControlTest, AnOrderOfAnotherDaemonEndsTheStream) {
  Open([this](ScriptedControl::Stream& stream) {
    proto::DaemonEvent event = FinishEvent();
    event.set_incarnation(8);
    stream.Write(event);
    return ReadAll(stream);
  });
  EXPECT_THAT(control_->Next(), StatusIs(StatusCode::kUnavailable, "the daemon was restarted"));
}

TEST_F(GrpcControlTest, TheEndOfAGroupIsToldThoughNobodyAsksForOrders) {
  Open([this](ScriptedControl::Stream& stream) {
    proto::DaemonEvent event = Event();
    event.mutable_end_group()->set_group(9);
    event.mutable_end_group()->set_reason("it broke");
    stream.Write(event);
    return ReadAll(stream);
  });
  {
    MutexLock lock(mu_);
    while (ended_groups_.empty()) changed_.Wait(mu_);
    EXPECT_EQ(ended_groups_, std::vector<std::string>{"9 it broke"});
  }
  ASSERT_OK_AND_ASSIGN(const Order order, control_->Next());
  EXPECT_EQ(std::get<EndGroupOrder>(order).group, 9u);
}

TEST_F(GrpcControlTest, ACancelEndsWhoWaitsAndIsNotReported) {
  Open([this](ScriptedControl::Stream& stream) { return ReadAll(stream); });
  EXPECT_FALSE(control_->HasNext());
  auto next = std::async(std::launch::async, [this] { return control_->Next(); });
  control_->Cancel(absl::AbortedError("the link is lost"));
  EXPECT_THAT(next.get(), StatusIs(StatusCode::kAborted, "the link is lost"));
  control_->Cancel(absl::InternalError("something later"));
  EXPECT_THAT(control_->Next(), StatusIs(StatusCode::kAborted, "the link is lost"));
  EXPECT_TRUE(Lost().empty());
}

TEST_F(GrpcControlTest, WhyAWorkerGivesUpGoesOutBehindWhatItHasReported) {
  Open([this](ScriptedControl::Stream& stream) { return ReadAll(stream); });
  control_->SendPassDone({.step = StepId(2)});
  control_->CancelAndSay(absl::DataLossError("half a chunk"));
  control_->CancelAndSay(absl::InternalError("something later"));
  EXPECT_THAT(control_->Next(), StatusIs(StatusCode::kDataLoss, "half a chunk"));
  const std::vector<proto::WorkerEvent> told = Told();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[1].pass_done().step(), 2);
  EXPECT_EQ(told[2].failed().message(), "DATA_LOSS: half a chunk");
  EXPECT_TRUE(Lost().empty());
}

}  // namespace
}  // namespace eps::worker
