#ifndef EPS_SERVER_SERVICE_RPC_SERVER_H_
#define EPS_SERVER_SERVICE_RPC_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "eps_server/service/listen_address.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

namespace eps::server {

// The daemon's gRPC server: its services and grpc.health.v1, on a loopback address.
//
// Threads: gRPC's own call the services; Shutdown from one
class RpcServer {
 public:
  // `max_message_bytes`: of anything that is received or sent, on either plane.
  // Errors: UNAVAILABLE naming the address: it cannot be listened on
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ListenAddress& address,
                                                          std::vector<std::unique_ptr<grpc::Service>> services,
                                                          int max_message_bytes);
  ~RpcServer();

  // HOST:PORT, with the port that the system chose.
  const std::string& address() const { return address_; }

  // Takes no more calls; lets those under way end for `grace`, then cancels them. Blocks until all have ended.
  void Shutdown(absl::Duration grace);

 private:
  RpcServer() = default;

  std::vector<std::unique_ptr<grpc::Service>> services_;  // outlive the server
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_RPC_SERVER_H_
