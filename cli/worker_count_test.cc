#include "cli/worker_count.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/daemon_client.h"
#include "common/base/state_names.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"

namespace eps::cli {
namespace {

// A daemon whose run is in `state`, and worker 1 in another; gone once it has answered so often.
class EndingDaemon final : public proto::Control::Service {
 public:
  explicit EndingDaemon(std::string state, std::string of_worker = worker_state::kLeaving, int answers = 2)
      : state_(std::move(state)), of_worker_(std::move(of_worker)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ends_ = std::thread([this, answers] {
      while (answers_ < answers) absl::SleepFor(absl::Milliseconds(1));
      server_->Shutdown();
    });
  }
  ~EndingDaemon() override { ends_.join(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  proto::StatusReply Said() const {
    proto::StatusReply reply;
    reply.set_state(state_);
    proto::WorkerStatus* worker = reply.add_workers();
    worker->set_worker_id(1);
    worker->set_state(of_worker_);
    return reply;
  }
  grpc::Status Drain(grpc::ServerContext*, const proto::DrainRequest*, proto::DrainReply*) override {
    return {grpc::StatusCode::UNAVAILABLE, "Socket closed"};  // as of one that dies before its answer is out
  }
  grpc::Status GetStatus(grpc::ServerContext*, const proto::StatusRequest*, proto::StatusReply* reply) override {
    *reply = Said();
    ++answers_;
    return grpc::Status::OK;
  }

 private:
  const std::string state_, of_worker_;
  std::atomic<int> answers_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread ends_;
};

TEST(WorkerCountTest, WhoWasLeavingWhenTheRunEndedIsNotSaidToHaveLeft) {
  EndingDaemon daemon(run_state::kFinishing);
  DaemonClient client(daemon.address());
  EXPECT_THAT(
      WaitUntilWorkersLeft(DaemonFlags(), client, {1}, daemon.Said()),
      StatusIs(absl::StatusCode::kAborted,
               "worker 1 had been asked to leave, and whether it did is not known: the run has come to its end"));
}

TEST(WorkerCountTest, ARunThatHasEndedIsNotWaitedFor) {
  const TempDir out;  // nobody has it
  DaemonFlags flags;
  flags.out = out.path();
  {
    EndingDaemon daemon(run_state::kTraining);
    DaemonClient client(daemon.address());
    EXPECT_THAT(WaitUntilWorkersLeft(flags, client, {1}, daemon.Said()),
                StatusIs(absl::StatusCode::kAborted, "the run has come to its end meanwhile: no daemon runs for"));
  }
  EndingDaemon daemon(run_state::kTraining);
  DaemonClient client(daemon.address());
  EXPECT_THAT(WaitForStartOrder(flags, client, 1, absl::Minutes(10), daemon.Said()),
              StatusIs(absl::StatusCode::kCancelled, "the run has come to its end meanwhile: no daemon runs for"));
}

TEST(WorkerCountTest, WhomADaemonLetGoThatDiedBeforeItSaidSoMayHaveLeft) {
  const TempDir out;  // nobody has it
  DaemonFlags flags;
  flags.out = out.path();
  EndingDaemon daemon(run_state::kTraining, worker_state::kLeaving, 0);
  DaemonClient client(daemon.address());
  EXPECT_THAT(LetWorkersGo(flags, client, {1}, /*no_wait=*/false, daemon.Said()),
              StatusIs(absl::StatusCode::kAborted,
                       "worker 1 had been asked to leave, and whether it did is not known: no daemon runs for"));
}

TEST(WorkerCountTest, WhoLeftIsNotWaitedForAndNoneOfThoseThatStay) {
  EndingDaemon daemon(run_state::kTraining, worker_state::kLeft, 1);
  DaemonClient client(daemon.address());
  EXPECT_OK(WaitUntilWorkersLeft(DaemonFlags(), client, {1}, daemon.Said()));
  EXPECT_EQ(CountStaying(daemon.Said()), 0);
  EXPECT_EQ(CountReady(daemon.Said()), 0);
}

TEST(WorkerCountTest, WhoWasLostDidNotLeave) {
  EndingDaemon daemon(run_state::kTraining, worker_state::kLost, 1);
  DaemonClient client(daemon.address());
  EXPECT_THAT(WaitUntilWorkersLeft(DaemonFlags(), client, {1}, daemon.Said()),
              StatusIs(absl::StatusCode::kAborted, "worker 1 was lost while leaving"));
}

}  // namespace
}  // namespace eps::cli
