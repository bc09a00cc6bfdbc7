#include "cli/daemon_client.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/run_folder/endpoint_file.h"
#include "common/run_folder/run_folder.h"
#include "common/security/secret_file.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"

namespace eps::cli {
namespace {

// A daemon whose every answer is `answer`.
class Refusing final : public proto::Control::Service {
 public:
  explicit Refusing(grpc::Status answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Refusing() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Checkpoint(grpc::ServerContext*, const proto::CheckpointRequest*, proto::CheckpointReply*) override {
    return answer_;
  }
  grpc::Status GetStatus(grpc::ServerContext*, const proto::StatusRequest*, proto::StatusReply* reply) override {
    proto::WorkerStatus* worker = reply->add_workers();
    worker->set_device_name("cpu\033[2J");
    worker->set_pass_seconds(0.25);
    return answer_;
  }

 private:
  const grpc::Status answer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

int RunCommand(const std::string& words) {
  CLI::App app;
  int exit_code = -1;
  AddCheckpoint(app, &exit_code);
  AddStatus(app, &exit_code);
  AddTop(app, &exit_code);
  app.parse(words, /*program_name_included=*/false);
  return exit_code;
}

TEST(DaemonClientTest, WhatTheDaemonAnswersIsAFailureAndNeverBadInput) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::NOT_FOUND,
        grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::UNAVAILABLE}) {
    const Refusing daemon(grpc::Status(code, "no"));
    for (const char* command : {"checkpoint", "status", "top --once"}) {
      EXPECT_EQ(RunCommand(absl::StrCat(command, " --connect ", daemon.address())), kExitFailed) << command << code;
    }
  }
}

TEST(DaemonClientTest, WhereNobodyAnswersAtAnAddressTheRunsFolderIsAdvised) {
  for (const char* command : {"status", "top --once"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunCommand(absl::StrCat(command, " --connect 127.0.0.1:1")), kExitFailed);
    const std::string error = testing::internal::GetCapturedStderr();
    EXPECT_THAT(error, testing::HasSubstr("eps: --connect 127.0.0.1:1: "));
    EXPECT_THAT(error, testing::HasSubstr("a run that has ended has no daemon: give --out DIR"));
  }
}

TEST(DaemonClientTest, WhereSomebodyListensWhoDoesNotAnswerDoorsAreAdvisedAndNoEndIsSaid) {
  const Refusing daemon(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed"));  // as one with TLS does
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunCommand("status --connect " + daemon.address()), kExitFailed);
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_THAT(error, testing::HasSubstr("--tls-ca FILE"));
  EXPECT_THAT(error, testing::HasSubstr("its connections are all taken"));
  EXPECT_THAT(error, testing::Not(testing::HasSubstr("has ended")));
}

TEST(DaemonClientTest, WhoAsksARunsPageIsToldWhereTheDaemonsAddressIs) {
  const Refusing page(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Trying to connect an http1.x server"));
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunCommand("status --connect " + page.address()), kExitFailed);
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_THAT(error, testing::HasSubstr("the daemon's address is `grpc` in the run's endpoints.json"));
  EXPECT_THAT(error, testing::Not(testing::HasSubstr("TLS")));
}

// This process lives, and has nobody listening: as a daemon that shows its page alone once its run is over.
TEST(DaemonClientTest, ADaemonThatLingersIsNotAskedAndTheRunHasEnded) {
  const TempDir dir;
  ASSERT_OK(WriteEndpointFile(dir.path(), EndpointFile::kRunning,
                              {.address = "127.0.0.1:1", .page = "", .process_id = getpid()}));
  const auto said_of = [&](const std::string& command, int exit_code, bool to_stdout) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunCommand(absl::StrCat(command, " --out ", dir.path())), exit_code) << command;
    const std::string out = testing::internal::GetCapturedStdout(), error = testing::internal::GetCapturedStderr();
    return to_stdout ? out : error;
  };
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor at_work, LockDirectory(dir.path()));  // not over yet
    const std::string said = said_of("status", kExitFailed, false);
    EXPECT_THAT(said, testing::HasSubstr("Connection refused"));
    EXPECT_THAT(said, testing::HasSubstr("the run is ending"));
  }
  ASSERT_OK(WriteFileAtomically(dir.File("summary.json"), R"({"steps": 4, "steps_planned": 9, "loss_last": 2.25})"));
  for (const char* command : {"status", "top --once", "checkpoint"}) {
    EXPECT_THAT(said_of(command, kExitFailed, false), testing::HasSubstr("4 of 9 steps were done")) << command;
  }
  EXPECT_THAT(said_of("status --json", kExitFailed, true), testing::HasSubstr(R"("step": "4")"));
  ASSERT_OK(WriteFileAtomically(dir.File("summary.json"), R"({"steps": 9, "steps_planned": 9, "loss_last": 2.25})"));
  for (const char* command : {"status", "top --once"}) {
    EXPECT_THAT(said_of(command, kExitDone, true), testing::HasSubstr("has ended: 9 of 9 steps")) << command;
  }
  EXPECT_THAT(said_of("checkpoint", kExitFailed, false), testing::HasSubstr("has ended: 9 of 9 steps"));
}

// What RunCommand says on stderr.
std::string ErrorOf(const std::string& words) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunCommand(words), kExitFailed) << words;
  return testing::internal::GetCapturedStderr();
}

TEST(DaemonClientTest, WhereTheDaemonOfAFolderLivesAndDoesNotAnswerItsRunIsEnding) {
  const TempDir dir;
  const Refusing daemon(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed"));
  ASSERT_OK(WriteEndpointFile(dir.path(), EndpointFile::kRunning,
                              {.address = daemon.address(), .page = "", .process_id = getpid()}));
  ASSERT_OK_AND_ASSIGN(const FileDescriptor at_work, LockDirectory(dir.path()));
  const std::string by_hand = ErrorOf("status --out " + dir.path());
  EXPECT_THAT(by_hand, testing::HasSubstr("the run is ending"));
  EXPECT_THAT(by_hand, testing::HasSubstr("or that daemon speaks TLS"));
  ASSERT_OK(MakeDirs(RunFolder(dir.path()).logs()));
  // As eps train has them, whose daemons speak no TLS.
  ASSERT_OK_AND_ASSIGN(const FileDescriptor logs, LockDirectory(RunFolder(dir.path()).logs()));
  const std::string of_train = ErrorOf("status --out " + dir.path());
  EXPECT_THAT(of_train, testing::HasSubstr("the run is ending"));
  EXPECT_THAT(of_train, testing::Not(testing::HasSubstr("TLS")));
}

// Takes every call and answers none, as one that was stopped.
class Silent final : public proto::Control::Service {
 public:
  Silent() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Silent() override { server_->Shutdown(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  grpc::Status GetStatus(grpc::ServerContext* context, const proto::StatusRequest*, proto::StatusReply*) override {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(DaemonClientTest, OfADaemonThatHangsItIsSaidWhoItIsAndThatItLives) {
  const TempDir dir;
  const Silent daemon;
  const absl::Status silence = DaemonClient(daemon.address()).Status(absl::Milliseconds(50)).status();
  EXPECT_THAT(silence, StatusIs(absl::StatusCode::kDeadlineExceeded, "no answer for 0.05 s"));
  DaemonFlags flags{.connect = daemon.address(), .out = "", .doors = {}};
  EXPECT_EQ(flags.Explain(silence).message(), absl::StrCat("--connect ", daemon.address(), ": no answer for 0.05 s"));
  flags = {.connect = "", .out = dir.path(), .doors = {}};
  ASSERT_OK(WriteEndpointFile(dir.path(), EndpointFile::kRunning,
                              {.address = daemon.address(), .page = "", .process_id = getpid()}));
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor at_work, LockDirectory(dir.path()));
    EXPECT_EQ(flags.Explain(silence).message(),
              absl::StrCat("the daemon of ", dir.path(), " (", daemon.address(), ", pid ", getpid(),
                           ") gave no answer for 0.05 s: its process lives; see its log"));
  }
  EXPECT_THAT(flags.Explain(silence), StatusIs(absl::StatusCode::kUnavailable, "no daemon runs for"));
  // What a command itself ran out of time for is no silence.
  const absl::Status own = absl::DeadlineExceededError("no answer for 1 m from 2 workers");
  EXPECT_EQ(flags.Explain(own), own);
}

TEST(DaemonClientTest, ADaemonThatLingersAfterAFailureIsNotAskedAndTheFailureIsSaid) {
  const TempDir dir;
  ASSERT_OK(WriteEndpointFile(dir.path(), EndpointFile::kRunning,
                              {.address = "127.0.0.1:1", .page = "", .process_id = getpid()}));
  ASSERT_OK(WriteFileAtomically(dir.File("summary.json"), R"({"steps": 9, "steps_planned": 9, "loss_last": 2.25})"));
  ASSERT_OK(WriteFileAtomically(dir.File("failure.json"), R"({"step": 9, "failure": "the disk is full"})"));
  for (const char* command : {"status", "top --once"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunCommand(absl::StrCat(command, " --out ", dir.path())), kExitFailed) << command;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr(" has failed: the disk is full; 9 of 9"));
  }
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand("status --json --out " + dir.path()), kExitFailed);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::HasSubstr(R"("failure": "the disk is full")"));
}

TEST(DaemonClientTest, ADaemonWhoseEndpointFileIsGoneIsNotDenied) {
  const TempDir dir;
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor at_work, LockDirectory(dir.path()));
    const std::string said = ErrorOf("status --out " + dir.path());
    EXPECT_THAT(said, testing::HasSubstr("a daemon has " + dir.path()));
    EXPECT_THAT(said, testing::HasSubstr("give --connect HOST:PORT"));
  }
  EXPECT_THAT(ErrorOf("status --out " + dir.path()), testing::HasSubstr("no daemon runs for"));
}

TEST(DaemonClientTest, ARunIsOverOnceNobodyIsLeftWhoMayStartItsDaemonAgain) {
  const TempDir dir;
  ASSERT_OK(MakeDirs(RunFolder(dir.path()).logs()));
  const DaemonFlags flags{.connect = "", .out = dir.path(), .doors = {}};
  {
    ASSERT_OK_AND_ASSIGN(const FileDescriptor eps_train, LockDirectory(RunFolder(dir.path()).logs()));
    EXPECT_TRUE(flags.HasNoDaemon());
    EXPECT_FALSE(flags.IsOver());
  }
  EXPECT_TRUE(flags.IsOver());
}

TEST(DaemonClientTest, WhatNobodyHasMeasuredIsNoNumber) {
  const Refusing daemon(grpc::Status::OK);
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand("status --connect " + daemon.address()), kExitDone);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, testing::HasSubstr("loss                 -\n"));
  EXPECT_THAT(text, testing::HasSubstr("speed                - tokens/s, - of the model"));
  EXPECT_THAT(text, testing::HasSubstr("compute waits for    -\n"));
}

TEST(DaemonClientTest, AnAnswerIsDone) {
  const Refusing daemon(grpc::Status::OK);
  EXPECT_EQ(RunCommand("checkpoint --connect " + daemon.address()), kExitDone);
  EXPECT_EQ(RunCommand("status --connect " + daemon.address()), kExitDone);
}

TEST(DaemonClientTest, StatusShowsShortPassesAndNothingThatSteersTheTerminal) {
  const Refusing daemon(grpc::Status::OK);
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand("status --connect " + daemon.address()), kExitDone);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, testing::HasSubstr("last pass 0.250 s"));
  EXPECT_THAT(text, testing::HasSubstr("cpu?[2J"));
}

TEST(RunTokenTest, ANewTokenTakesThePlaceOfTheOldOneAndOnlyItsOwnerReadsIt) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const ClientDoors doors, WriteRunToken(dir.path()));
  EXPECT_EQ(doors.token_file, RunFolder(dir.path()).token());
  ASSERT_OK_AND_ASSIGN(const std::string first, ReadSecretFile(doors.token_file));  // refuses what others may read
  ASSERT_OK(WriteRunToken(dir.path()).status());
  EXPECT_NE(ReadSecretFile(doors.token_file).value(), first);
  EXPECT_FALSE(WriteRunToken(dir.File("none")).ok());
}

TEST(DaemonClientTest, FlagsThatNameNoDaemonAreBadInput) {
  EXPECT_EQ(RunCommand("checkpoint"), kExitBadInput);
  EXPECT_EQ(RunCommand("checkpoint --connect 127.0.0.1:1 --token-file /no/such/file"), kExitBadInput);
}

}  // namespace
}  // namespace eps::cli
