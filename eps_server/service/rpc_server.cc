#include "eps_server/service/rpc_server.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/grpc/byte_buffers.h"
#include "common/grpc/message_limits.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace eps::server {
namespace {

// What gRPC may hold for all connections: messages that come in faster than they are taken. Part of the daemon's
// constant (eps_server/memory).
constexpr size_t kQuotaBytes = 48 << 20;

// A worker may ask whether the daemon is alive so often; who asks more often is cut off. Half of what workers do
// (gpu_worker/transport/grpc_channel.cc), so that clocks need not agree.
constexpr absl::Duration kMinPingInterval = absl::Seconds(10);

void SetLimits(const RpcLimits& limits, grpc::ServerBuilder& builder) {
  const auto set = [&builder](const char* name, absl::Duration time) {
    builder.AddChannelArgument(name, static_cast<int>(absl::ToInt64Milliseconds(time)));
  };
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_streams);
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, limits.handshake);
  set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, limits.idle);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, limits.keepalive);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, limits.keepalive_answer);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // while a pass computes, nothing else is said
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingInterval);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const ListenAddress& address,
                                                            std::vector<std::unique_ptr<grpc::Service>> services,
                                                            int max_message_bytes, RpcServerOptions options) {
  if (options.credentials == nullptr) options.credentials = grpc::InsecureServerCredentials();
  std::unique_ptr<RpcServer> result(new RpcServer(std::move(options)));
  EPS_ASSIGN_OR_RETURN(result->acceptor_, ConnectionAcceptor::Listen(address, result->options_.limits.max_connections));
  EPS_RETURN_IF_ERROR(result->Serve(std::move(services), max_message_bytes, result->options_.is_serving));
  result->address_ = ListenAddress{address.host, result->acceptor_->port()}.ToString();
  return result;
}

absl::Status RpcServer::Serve(std::vector<std::unique_ptr<grpc::Service>> services, int max_message_bytes,
                              bool is_serving) {
  max_message_bytes = std::max(max_message_bytes, static_cast<int>(kMaxDataMessageBytes));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  auto target = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, options_.credentials);
  for (const auto& service : services) builder.RegisterService(service.get());
  builder.SetMaxReceiveMessageSize(max_message_bytes);
  builder.SetMaxSendMessageSize(std::max(max_message_bytes, static_cast<int>(kRunMessageBytes)));  // an AttachReply
  builder.SetResourceQuota(grpc::ResourceQuota("eps_server").Resize(kQuotaBytes));
  SetLimits(options_.limits, builder);
  for (const ChannelArgument& each : kDataChannelArguments) builder.AddChannelArgument(each.name, each.value);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC does not start its server; its log says why");
  if (!is_serving) server->GetHealthCheckService()->SetServingStatus(false);
  acceptor_->HandOverTo(std::move(target));
  server_.swap(server);
  services_.swap(services);
  if (server == nullptr) return absl::OkStatus();
  server->Shutdown(absl::ToChronoTime(absl::Now()));
  server->Wait();
  return absl::OkStatus();
}

absl::Status RpcServer::Replace(std::vector<std::unique_ptr<grpc::Service>> services, int max_message_bytes) {
  return Serve(std::move(services), max_message_bytes, /*is_serving=*/true);
}

std::string RpcServer::LocalAddress() const {
  const std::string host = HostOf(address_);
  if (host == "0.0.0.0") return absl::StrCat("127.0.0.1:", acceptor_->port());
  if (host == "::") return absl::StrCat("[::1]:", acceptor_->port());
  return address_;
}

void RpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  if (health != nullptr) health->SetServingStatus(serving);
}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  acceptor_->Stop();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_.reset();
}

}  // namespace eps::server
