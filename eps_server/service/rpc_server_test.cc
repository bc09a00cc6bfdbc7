#include "eps_server/service/rpc_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/client_credentials.h"
#include "common/grpc/doors.h"
#include "common/grpc/server_credentials.h"
#include "common/grpc/server_keys.h"
#include "common/security/key_set.h"
#include "common/security/secret_file.h"
#include "common/testing/bare_client.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/method_roles.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/impl/codegen/rpc_method.h"
#include "gtest/gtest.h"
#include "proto/data_plane.grpc.pb.h"

namespace eps::server {
namespace {

using grpc::StatusCode;

constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
constexpr char kHttp2Preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A key set as `eps keys` writes it, in a folder of its own.
struct Keys {
  explicit Keys(const std::vector<std::string>& hosts = {"127.0.0.1", "localhost"},
                absl::Time until = absl::Now() + absl::Hours(1000)) {
    const KeySet set = MakeKeySet({.hosts = hosts, .from = absl::Now() - absl::Hours(100), .until = until}).value();
    ca = Write("ca.crt", set.ca_certificate);
    server_certificate = Write("server.crt", set.server_certificate);
    server_key = Write("server.key", set.server_key);
    client_certificate = Write("client.crt", set.client_certificate);
    client_key = Write("client.key", set.client_key);
    token = Write("token", set.operator_token);
  }
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_OK(WriteSecretFile(dir.File(name), content));
    return dir.File(name);
  }
  TempDir dir;
  std::string ca, server_certificate, server_key, client_certificate, client_key, token;
};

class RpcServerTest : public testing::Test {
 protected:
  // `then`: when the files were looked at. A certificate may have expired since.
  void Start(const ServerDoors& doors, RpcLimits limits = {}, absl::Time then = absl::Now()) {
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(NewDataService({.incarnation = 1, .model = &model_}));
    auto watch = ServerKeysWatch::Begin(doors, then, /*every=*/absl::InfiniteDuration());
    ASSERT_OK(watch.status());
    watch_ = *std::move(watch);
    auto server = RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 1 << 20,
                                   {.credentials = NewServerCredentials(watch_, RoleOfMethod), .limits = limits});
    ASSERT_OK(server.status());
    server_ = *std::move(server);
  }

  std::shared_ptr<grpc::Channel> Channel(const ClientDoors& doors, absl::Time then = absl::Now()) const {
    return Connect(NewChannelCredentials(doors, server_->address(), then).value());
  }
  std::shared_ptr<grpc::Channel> Connect(std::shared_ptr<grpc::ChannelCredentials> credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // every channel is a connection of its own
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    return grpc::CreateCustomChannel(server_->address(), std::move(credentials), arguments);
  }

  // Asks for grpc.health.v1, which is served to whoever is let in.
  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization = "") {
    const grpc::internal::RpcMethod method(kHealth, grpc::internal::RpcMethod::NORMAL_RPC, channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    const grpc::ByteBuffer request(nullptr, 0);
    grpc::ByteBuffer reply;
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(channel.get(), method, &context,
                                                                                 request, &reply);
  }
  grpc::Status Ask(const ClientDoors& doors, absl::Time then = absl::Now()) const { return Ask(Channel(doors, then)); }

  // Reads until the server closes the connection; false if it does not within `limit`.
  static bool IsClosedWithin(const FileDescriptor& fd, absl::Duration limit, std::string* received = nullptr) {
    const absl::Time deadline = absl::Now() + limit;
    while (absl::Now() < deadline) {
      pollfd waited = {.fd = fd.get(), .events = POLLIN, .revents = 0};
      if (poll(&waited, 1, 20) == 0) continue;
      char buffer[4096];
      const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
      if (n <= 0) return true;  // its end, or a reset
      if (received != nullptr) received->append(buffer, static_cast<size_t>(n));
    }
    return false;
  }
  static void Say(const FileDescriptor& fd, const std::string& bytes) {
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  ServerDoors WithTls(const Keys& keys) const {
    return {.certificate_file = keys.server_certificate, .key_file = keys.server_key};
  }
  ServerDoors WithToken(ServerDoors doors, const Keys& keys) const {
    doors.token_file = keys.token;
    return doors;
  }
  ServerDoors WithClientCa(ServerDoors doors, const Keys& keys) const {
    doors.client_ca_file = keys.ca;
    return doors;
  }

  // What a thread does in a daemon: a change is taken when it is still there at the next look.
  void LookAtFiles() {
    watch_->Look(absl::Now());
    watch_->Look(absl::Now());
  }
  static void Replace(const std::string& file, const std::string& with) {
    const std::string content = ReadFile(with).value();
    ASSERT_EQ(unlink(file.c_str()), 0);
    ASSERT_OK(WriteSecretFile(file, content));
  }

  const ModelSpec model_{};
  std::shared_ptr<ServerKeysWatch> watch_;
  std::unique_ptr<RpcServer> server_;
  Keys keys_;
};

using DoorTest = RpcServerTest;

TEST_F(DoorTest, TheRightTokenOverTlsIsLetIn) {
  Start(WithToken(WithTls(keys_), keys_));
  const grpc::Status status = Ask({.ca_file = keys_.ca, .token_file = keys_.token});
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(DoorTest, NoTokenAndAnotherTokenAreRefused) {
  const Keys other;
  Start(WithToken(WithTls(keys_), keys_));
  const grpc::Status none = Ask({.ca_file = keys_.ca});
  EXPECT_EQ(none.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_NE(none.error_message().find("--token-file"), std::string::npos) << none.error_message();
  const grpc::Status wrong = Ask({.ca_file = keys_.ca, .token_file = other.token});
  EXPECT_EQ(wrong.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(wrong.error_message(), "the token is not this daemon's");
}

TEST_F(DoorTest, ATokenInAnotherShapeIsRefused) {
  Start(WithToken(WithTls(keys_), keys_));
  const auto channel = Channel({.ca_file = keys_.ca});
  const std::string token = ReadFile(keys_.token).value();
  for (const std::string& value : {token, "Basic " + token, "bearer" + token, std::string("Bearer "),
                                   "Bearer  " + token, "Bearer " + token.substr(1), "Bearer " + token + "0"}) {
    EXPECT_EQ(Ask(channel, value).error_code(), StatusCode::UNAUTHENTICATED);
  }
  EXPECT_TRUE(Ask(channel, "Bearer " + token).ok());
  // Not even when one of two is right.
  EXPECT_EQ(Ask(Channel({.ca_file = keys_.ca, .token_file = keys_.token}), "Bearer x").error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(DoorTest, EveryServiceIsBehindTheDoor) {
  Start(WithToken(WithTls(keys_), keys_));
  for (const bool has_token : {false, true}) {
    const auto channel = Channel({.ca_file = keys_.ca, .token_file = has_token ? keys_.token : ""});
    const auto stub = proto::DataPlane::NewStub(channel);
    // Let in, they say that nothing is trained, and that the request names no daemon of this incarnation.
    grpc::ClientContext push_context, pull_context;
    const auto push = stub->Push(&push_context);
    EXPECT_EQ(push->Finish().error_code() == StatusCode::UNAUTHENTICATED, !has_token) << "push";
    const auto pull = stub->Pull(&pull_context);
    pull->Write({});
    EXPECT_EQ(pull->Finish().error_code() == StatusCode::UNAUTHENTICATED, !has_token) << "pull";
    EXPECT_EQ(Ask(channel).error_code() == StatusCode::UNAUTHENTICATED, !has_token) << "health";
  }
}

TEST_F(DoorTest, AServerOfAnotherCaIsNotBelieved) {
  const Keys other;
  Start(WithToken(WithTls(keys_), keys_));
  EXPECT_EQ(Ask({.ca_file = other.ca, .token_file = keys_.token}).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, AServerOfAnotherNameIsNotBelieved) {
  const Keys elsewhere({"node7.cluster", "10.0.0.7"});
  Start(WithTls(elsewhere));
  EXPECT_EQ(Ask({.ca_file = elsewhere.ca}).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, AnExpiredServerIsNotBelieved) {
  const Keys expired({"127.0.0.1"}, absl::Now() - absl::Hours(1));
  const absl::Time then = absl::Now() - absl::Hours(50);
  EXPECT_THAT(ReadServerCertificates(WithTls(expired), absl::Now()),
              StatusIs(absl::StatusCode::kInvalidArgument, "expired"));
  Start(WithTls(expired), {}, then);
  EXPECT_EQ(Ask({.ca_file = expired.ca}, then).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, OnlyClientsOfTheCaAreLetIn) {
  const Keys other;
  Start(WithClientCa(WithTls(keys_), keys_));
  const auto ask = [this](const std::string& certificate, const std::string& key) {
    return Ask({.ca_file = keys_.ca, .certificate_file = certificate, .key_file = key}).error_code();
  };
  EXPECT_EQ(ask(keys_.client_certificate, keys_.client_key), StatusCode::OK);
  EXPECT_EQ(ask("", ""), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ask(other.client_certificate, other.client_key), StatusCode::UNAVAILABLE);
  // Stolen from a server it does not make a client. (Our own programs do not even show it.)
  const auto show = [this](const std::string& certificate, const std::string& key) {
    grpc::SslCredentialsOptions shown = {.pem_root_certs = ReadFile(keys_.ca).value(),
                                         .pem_private_key = ReadFile(key).value(),
                                         .pem_cert_chain = ReadFile(certificate).value()};
    return Ask(Connect(grpc::SslCredentials(shown))).error_code();
  };
  EXPECT_EQ(show(keys_.client_certificate, keys_.client_key), StatusCode::OK);
  EXPECT_EQ(show(keys_.server_certificate, keys_.server_key), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, AnExpiredClientIsKeptOut) {
  const Keys expired({"127.0.0.1"}, absl::Now() - absl::Hours(1));
  const absl::Time then = absl::Now() - absl::Hours(50);
  Start(WithClientCa(WithTls(keys_), expired), {}, then);
  EXPECT_EQ(
      Ask({.ca_file = keys_.ca, .certificate_file = expired.client_certificate, .key_file = expired.client_key}, then)
          .error_code(),
      StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, ACertificateDoesNotReplaceTheTokenNorATokenTheCertificate) {
  Start(WithToken(WithClientCa(WithTls(keys_), keys_), keys_));
  const ClientDoors both = {.ca_file = keys_.ca,
                            .certificate_file = keys_.client_certificate,
                            .key_file = keys_.client_key,
                            .token_file = keys_.token};
  EXPECT_EQ(Ask(both).error_code(), StatusCode::OK);
  ClientDoors no_token = both, no_certificate = both;
  no_token.token_file = "";
  no_certificate.certificate_file = no_certificate.key_file = "";
  EXPECT_EQ(Ask(no_token).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(no_certificate).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, PlaintextToATlsPortAndTlsToAPlaintextPortFail) {
  Start(WithTls(keys_));
  EXPECT_EQ(Ask(ClientDoors{}).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask({.token_file = keys_.token}).error_code(), StatusCode::UNAVAILABLE);
  Start({});
  EXPECT_EQ(Ask({.ca_file = keys_.ca}).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(ClientDoors{}).error_code(), StatusCode::OK);
}

TEST_F(DoorTest, OnLoopbackATokenAloneIsADoorToo) {
  const Keys other;
  Start({.token_file = keys_.token});
  EXPECT_EQ(Ask({.token_file = keys_.token}).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask({.token_file = other.token}).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(ClientDoors{}).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(DoorTest, NothingIsSaidToAnotherMachineInPlaintext) {
  for (const char* address : {"10.0.0.7:7070", "node7:7070", "[fd00::7]:7070"}) {
    EXPECT_THAT(NewChannelCredentials({.token_file = keys_.token}, address, absl::Now()),
                StatusIs(absl::StatusCode::kInvalidArgument, "--tls-ca"));
    EXPECT_THAT(NewChannelCredentials({}, address, absl::Now()),
                StatusIs(absl::StatusCode::kInvalidArgument, "--tls-ca"));
    EXPECT_OK(NewChannelCredentials({.ca_file = keys_.ca}, address, absl::Now()));
  }
}

TEST_F(DoorTest, FilesThatOthersMayReadOpenNothing) {
  ASSERT_EQ(chmod(keys_.token.c_str(), 0644), 0);
  EXPECT_THAT(ServerKeysWatch::Begin({.token_file = keys_.token}, absl::Now()),
              StatusIs(absl::StatusCode::kFailedPrecondition, "chmod 600 " + keys_.token));
  EXPECT_THAT(NewChannelCredentials({.ca_file = keys_.ca, .token_file = keys_.token}, "node7:1", absl::Now()),
              StatusIs(absl::StatusCode::kFailedPrecondition, "chmod 600 " + keys_.token));
}

TEST_F(DoorTest, ACallWantsATokenWhoseRoleMayMakeIt) {
  const std::string viewer(50, 'v'), worker(50, 'w'), any(50, 'o');
  Start({.token_file = keys_.Write("tokens", viewer + " viewer\n" + worker + " worker\n" + any + "\n")});
  const auto code_of_push = [this](const std::string& token) {
    const auto channel = Channel({.token_file = keys_.Write("shown-" + token.substr(0, 1), token)});
    EXPECT_EQ(Ask(channel).error_code(), StatusCode::OK) << token;
    grpc::ClientContext context;
    return proto::DataPlane::NewStub(channel)->Push(&context)->Finish();
  };
  const grpc::Status refused = code_of_push(viewer);
  EXPECT_EQ(refused.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused.error_message(), "the token is a viewer's, and /eps.proto.DataPlane/Push wants a worker's");
  // Let in, they hear that nothing is trained here.
  EXPECT_NE(code_of_push(worker).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_NE(code_of_push(any).error_code(), StatusCode::PERMISSION_DENIED);
}

TEST_F(DoorTest, NewConnectionsGoByTheCertificatesThatThereAreByThenAndOpenOnesStay) {
  const Keys renewed;
  Start(WithClientCa(WithTls(keys_), keys_));
  const auto doors_of = [](const Keys& keys) {
    return ClientDoors{.ca_file = keys.ca, .certificate_file = keys.client_certificate, .key_file = keys.client_key};
  };
  const Keys before;  // what the old ones were, for who was not told
  for (const auto& [file, from] : {std::pair(before.ca, keys_.ca),
                                   {before.client_certificate, keys_.client_certificate},
                                   {before.client_key, keys_.client_key}}) {
    Replace(file, from);
  }
  const auto open = Channel(doors_of(before));
  ASSERT_EQ(Ask(open).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask(doors_of(renewed)).error_code(), StatusCode::UNAVAILABLE);

  Replace(keys_.server_certificate, renewed.server_certificate);
  LookAtFiles();
  EXPECT_NE(watch_->state().not_reloaded, "");  // half of a set: its key is not there yet
  EXPECT_EQ(Ask(doors_of(before)).error_code(), StatusCode::OK);

  Replace(keys_.server_key, renewed.server_key);
  Replace(keys_.ca, renewed.ca);
  LookAtFiles();
  EXPECT_EQ(watch_->state().not_reloaded, "");
  EXPECT_EQ(Ask(doors_of(renewed)).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask(doors_of(before)).error_code(), StatusCode::UNAVAILABLE);  // which does not believe the daemon
  EXPECT_EQ(Ask({.ca_file = renewed.ca, .certificate_file = before.client_certificate, .key_file = before.client_key})
                .error_code(),
            StatusCode::UNAVAILABLE);  // whom the daemon does not believe
  EXPECT_EQ(Ask(open).error_code(), StatusCode::OK);

  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(NewDataService({.incarnation = 2, .model = &model_}));
  ASSERT_OK(server_->Replace(std::move(services), 1 << 20));
  EXPECT_EQ(Ask(doors_of(renewed)).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask(doors_of(before)).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, WhereClientsNeedNoCertificatesTheDaemonsIsExchangedToo) {
  const Keys renewed;
  Start(WithTls(keys_));
  EXPECT_EQ(Ask({.ca_file = keys_.ca}).error_code(), StatusCode::OK);
  Replace(keys_.server_certificate, renewed.server_certificate);
  Replace(keys_.server_key, renewed.server_key);
  LookAtFiles();
  EXPECT_EQ(Ask({.ca_file = renewed.ca}).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask({.ca_file = keys_.ca}).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DoorTest, CallsGoByTheTokensThatThereAreByThenAlsoOnOpenConnections) {
  Start(WithToken(WithTls(keys_), keys_));
  const std::string old_token = ReadFile(keys_.token).value(), new_token(43, 'n');
  const auto channel = Channel({.ca_file = keys_.ca});
  const auto ask = [&](const std::string& token) { return Ask(channel, "Bearer " + token).error_code(); };
  const auto let_in = [&](const std::string& lines) {
    Replace(keys_.token, keys_.Write("next", lines));
    ASSERT_EQ(unlink(keys_.dir.File("next").c_str()), 0);
    LookAtFiles();
  };
  EXPECT_EQ(ask(old_token), StatusCode::OK);
  EXPECT_EQ(ask(new_token), StatusCode::UNAUTHENTICATED);
  let_in(new_token + "\n" + old_token + "\n");
  EXPECT_EQ(ask(old_token), StatusCode::OK);
  EXPECT_EQ(ask(new_token), StatusCode::OK);
  let_in(new_token + "\n");
  EXPECT_EQ(ask(old_token), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ask(new_token), StatusCode::OK);
  let_in("");  // nobody is not whom it lets in: those from before go on
  EXPECT_NE(watch_->state().not_reloaded, "");
  EXPECT_EQ(ask(new_token), StatusCode::OK);
}

TEST_F(DoorTest, AClientShowsWhatItsFilesHoldByThen) {
  const Keys renewed;
  Start(WithToken(WithClientCa(WithTls(renewed), renewed), renewed));
  // It has the old keys, and hears of the new ones later.
  ASSERT_OK_AND_ASSIGN(const auto shown, ClientKeys::Open({.ca_file = keys_.ca,
                                                           .certificate_file = keys_.client_certificate,
                                                           .key_file = keys_.client_key,
                                                           .token_file = keys_.token},
                                                          server_->address(), absl::Now()));
  EXPECT_EQ(Ask(Connect(shown->Credentials())).error_code(), StatusCode::UNAVAILABLE);
  Replace(keys_.ca, renewed.ca);
  Replace(keys_.client_certificate, renewed.client_certificate);
  // Its key is not there yet: the old set goes on.
  EXPECT_EQ(Ask(Connect(shown->Credentials())).error_code(), StatusCode::UNAVAILABLE);
  Replace(keys_.client_key, renewed.client_key);
  const auto channel = Connect(shown->Credentials());
  EXPECT_EQ(Ask(channel).error_code(), StatusCode::UNAUTHENTICATED);  // the token is the old one
  const std::string old_token = ReadFile(keys_.token).value();
  Replace(keys_.token, renewed.token);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);  // looked at once a second
  while (Ask(channel).error_code() != StatusCode::OK) ASSERT_LT(absl::Now(), deadline);
  // What is no token is not shown: the one from before is.
  ASSERT_EQ(unlink(keys_.token.c_str()), 0);
  shown->Credentials();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Ask(channel).error_code(), StatusCode::OK);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("token_not_reloaded"), std::string::npos) << log;
  EXPECT_EQ(log.find(old_token), std::string::npos);
}

using LimitTest = RpcServerTest;

TEST_F(RpcServerTest, AnOccupiedPortIsNamed) {
  Start({});
  const std::string address = server_->address();
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(NewDataService({.incarnation = 2, .model = &model_}));
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  EXPECT_THAT(RpcServer::Start({.host = "127.0.0.1", .port = port}, std::move(services), 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, address));
}

TEST_F(DoorTest, WhatTakesTheServicesPlaceIsBehindTheSameDoor) {
  Start(WithToken(WithTls(keys_), keys_));
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(NewDataService({.incarnation = 2, .model = &model_}));
  ASSERT_OK(server_->Replace(std::move(services), 1 << 20));
  EXPECT_EQ(Ask({.ca_file = keys_.ca, .token_file = keys_.token}).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask({.ca_file = keys_.ca}).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(LimitTest, OneConnectionTooManyIsClosedAtOnceAndAPlaceThatIsLeftIsFree) {
  Start({}, {.max_connections = 3});
  std::vector<FileDescriptor> held;
  for (int i = 0; i < 3; ++i) held.push_back(ConnectTo(server_->address()));
  const absl::Time start = absl::Now();
  EXPECT_TRUE(IsClosedWithin(ConnectTo(server_->address()), absl::Seconds(5)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_FALSE(Ask(ClientDoors{}).ok());
  held.pop_back();
  // gRPC closes its side when it has seen ours.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!Ask(ClientDoors{}).ok()) ASSERT_LT(absl::Now(), deadline);
}

TEST_F(LimitTest, TwoThousandConnectionsAreHeldOrRefusedAndThenItServes) {
  Start({}, {.max_connections = 256, .handshake = absl::Seconds(1)});
  const absl::Time start = absl::Now();
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 2000; ++i) {
    sockets.push_back(ConnectTo(server_->address()));
    if (sockets.size() > 800) sockets.erase(sockets.begin());  // this process has few descriptors too
  }
  // None of them says a word: their places are free again after the time for the handshake.
  while (!Ask(ClientDoors{}).ok()) ASSERT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST_F(LimitTest, AHalfOpenConnectionIsClosed) {
  for (const bool tls : {false, true}) {
    Start(tls ? WithTls(keys_) : ServerDoors{}, {.handshake = absl::Milliseconds(300)});
    const FileDescriptor silent = ConnectTo(server_->address()), slow = ConnectTo(server_->address());
    Say(slow, tls ? std::string("\x16\x03\x01\x02", 4) : std::string(kHttp2Preface).substr(0, 10));
    EXPECT_TRUE(IsClosedWithin(silent, absl::Seconds(10))) << tls;
    EXPECT_TRUE(IsClosedWithin(slow, absl::Seconds(10))) << tls;
  }
}

TEST_F(LimitTest, AnIdleConnectionIsClosed) {
  Start({}, {.idle = absl::Milliseconds(300)});
  const auto channel = Channel({});
  ASSERT_TRUE(Ask(channel).ok());
  EXPECT_TRUE(
      channel->WaitForStateChange(GRPC_CHANNEL_READY, std::chrono::system_clock::now() + std::chrono::seconds(10)));
  EXPECT_TRUE(Ask(channel).ok());  // and opened again by whoever wants something
}

TEST_F(LimitTest, APeerThatAnswersNothingIsGone) {
  Start({},
        {.idle = absl::Minutes(10), .keepalive = absl::Milliseconds(300), .keepalive_answer = absl::Milliseconds(300)});
  const FileDescriptor dead = ConnectTo(server_->address());
  // Up to here it was a client: preface and empty SETTINGS. It never answers a PING.
  Say(dead, std::string(kHttp2Preface) + std::string(9, '\0').replace(3, 1, "\x04"));
  EXPECT_TRUE(IsClosedWithin(dead, absl::Seconds(20)));
}

TEST_F(LimitTest, MalformedFramesEndTheirConnectionAndNoOther) {
  Start({}, {.handshake = absl::Minutes(10)});  // which would end some of them, too
  const auto channel = Channel({});
  ASSERT_TRUE(Ask(channel).ok());
  const std::string settings = std::string(9, '\0').replace(3, 1, "\x04");
  const std::vector<std::string> bad = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(64, '\xff'),
      // A frame of 16 MiB, more than was agreed on.
      kHttp2Preface + settings + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9) + std::string(1000, 'x'),
      // SETTINGS on a stream, SETTINGS of 5 bytes, a broken header block.
      kHttp2Preface + std::string("\x00\x00\x00\x04\x00\x00\x00\x00\x01", 9),
      kHttp2Preface + std::string("\x00\x00\x05\x04\x00\x00\x00\x00\x00"
                                  "12345",
                                  14),
      kHttp2Preface + settings + std::string("\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff", 13),
  };
  for (const std::string& bytes : bad) {
    const FileDescriptor fd = ConnectTo(server_->address());
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(IsClosedWithin(fd, absl::Seconds(15))) << absl::StrCat("case ", &bytes - bad.data());
    EXPECT_TRUE(Ask(channel).ok());
  }
}

TEST_F(LimitTest, PeersAreToldHowManyCallsAConnectionMayHave) {
  Start({}, {.max_streams = 7, .handshake = absl::Milliseconds(500)});
  const FileDescriptor fd = ConnectTo(server_->address());
  Say(fd, kHttp2Preface);
  std::string received;
  IsClosedWithin(fd, absl::Seconds(5), &received);
  // The first frame is SETTINGS; SETTINGS_MAX_CONCURRENT_STREAMS is 3, 4 bytes follow it.
  ASSERT_GT(received.size(), 9u);
  ASSERT_EQ(received[3], 4);
  const size_t length = static_cast<unsigned char>(received[2]);
  bool found = false;
  for (size_t at = 9; at + 6 <= 9 + length; at += 6) {
    if (received[at] != 0 || received[at + 1] != 3) continue;
    found = true;
    EXPECT_EQ(received.substr(at + 2, 4), std::string("\0\0\0\7", 4));
  }
  EXPECT_TRUE(found);
}

TEST_F(LimitTest, AMessageBeyondTheLimitIsRefused) {
  Start({});
  const auto stub = proto::DataPlane::NewStub(Channel({}));
  grpc::ClientContext context;
  proto::PullRequest request;
  // An unknown field of 3 MiB: the limit counts bytes, not what they mean.
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, std::string(3 << 20, 'x'));
  const auto pull = stub->Pull(&context);
  pull->Write(request);
  EXPECT_EQ(pull->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace eps::server
