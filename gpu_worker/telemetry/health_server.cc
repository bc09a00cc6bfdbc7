#include "gpu_worker/telemetry/health_server.h"

#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/status_macros.h"
#include "common/telemetry/http_page.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace eps::worker {
namespace {

constexpr size_t kQuotaBytes = 8 << 20;      // that gRPC holds for all peers
constexpr int kMaxMessageBytes = 4096;       // the name of a service, and little else
constexpr int kMaxStreams = 16;              // calls at once on a connection
constexpr int kHandshakeMillis = 10000;      // a connection that has not said a word of HTTP/2 by then is closed
constexpr int kIdleMillis = 10 * 60 * 1000;  // as is one without a call

}  // namespace

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const std::string& listen, bool any_address) {
  EPS_RETURN_IF_ERROR(CheckPageAddress(listen, any_address));
  EPS_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(listen));
  std::unique_ptr<HealthServer> result(new HealthServer());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &address.port);
  builder.RegisterCallbackGenericService(&result->others_);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                             0);  // two workers at one address would each get some of the calls
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMillis);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("gpu_worker_health").Resize(kQuotaBytes));
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || address.port == 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", listen, ": gRPC's log says why"));
  }
  result->address_ = address.ToString();
  result->SetServing(false);
  return result;
}

void HealthServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  if (health != nullptr) health->SetServingStatus(serving);
}

HealthServer::~HealthServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());  // a Watch would last for ever
  server_->Wait();
}

}  // namespace eps::worker
