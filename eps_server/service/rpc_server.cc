#include "eps_server/service/rpc_server.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc/byte_buffers.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace eps::server {
namespace {

// What gRPC may hold for all connections: messages that come in faster than they are taken. Part of the daemon's
// constant (eps_server/memory).
constexpr size_t kQuotaBytes = 48 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const ListenAddress& address,
                                                            std::vector<std::unique_ptr<grpc::Service>> services,
                                                            int max_message_bytes) {
  std::unique_ptr<RpcServer> result(new RpcServer());
  result->services_ = std::move(services);
  max_message_bytes = std::max(max_message_bytes, static_cast<int>(kMaxDataMessageBytes));

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
  for (const auto& service : result->services_) builder.RegisterService(service.get());
  builder.SetMaxReceiveMessageSize(max_message_bytes);
  builder.SetMaxSendMessageSize(max_message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota("eps_server").Resize(kQuotaBytes));
  // A second daemon on the same port is an error, not a rival.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kDataFrameBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kDataWindowBytes);
  builder.AddChannelArgument("grpc.experimental.tcp_read_chunk_size", kDataReadBytes);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address.ToString(), ": the address is taken, or not this host's"));
  }
  result->address_ = ListenAddress{address.host, port}.ToString();
  return result;
}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_.reset();
}

}  // namespace eps::server
