#ifndef EPS_SERVER_SERVICE_RPC_SERVER_H_
#define EPS_SERVER_SERVICE_RPC_SERVER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/listen_address.h"
#include "eps_server/service/connection_acceptor.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"

namespace eps::server {

// What one peer, and all of them, may take of the daemon. Defaults are docs/security.md's.
struct RpcLimits {
  int max_connections = 1024;
  int max_streams = 128;  // calls at once on a connection; more wait at the peer
  // A connection that has not finished its TLS handshake, or not said a word of HTTP/2, is closed after this time.
  absl::Duration handshake = absl::Seconds(10);
  absl::Duration idle = absl::Minutes(10);  // without a call under way it is closed
  // A peer that has said nothing for `keepalive` is asked; without an answer within `keepalive_answer` it is gone, and
  // so is one to which nothing could be sent for that long.
  absl::Duration keepalive = absl::Seconds(20);
  absl::Duration keepalive_answer = absl::Seconds(20);
};

struct RpcServerOptions {
  std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: plaintext for everyone
  RpcLimits limits = {};
  bool is_serving = true;  // what grpc.health.v1 says at first
};

// The daemon's gRPC server: its services and grpc.health.v1.
//
// Threads: gRPC's own call the services; the rest from one
class RpcServer {
 public:
  // `max_message_bytes`: of anything that is received or sent, on either plane; what carries a run may be kRunMessageBytes.
  // Errors: FAILED_PRECONDITION naming the address: it cannot be listened on · UNAVAILABLE the system's
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ListenAddress& address,
                                                          std::vector<std::unique_ptr<grpc::Service>> services,
                                                          int max_message_bytes, RpcServerOptions options = {});
  ~RpcServer();

  // Goes on with other services, at the same address and for the same peers. Who connects from now on, or was waiting to,
  // comes to them; connections that are open are closed, which clients make anew by themselves, and calls that are under
  // way on them end with UNAVAILABLE or CANCELLED. After an error nothing has changed.
  absl::Status Replace(std::vector<std::unique_ptr<grpc::Service>> services, int max_message_bytes);

  // HOST:PORT, with the port that the system chose.
  const std::string& address() const { return address_; }
  // The same as processes of this machine write it: loopback for a server that listens on all addresses.
  std::string LocalAddress() const;

  // What grpc.health.v1 answers for the server as a whole (no name of a service); as the options say from the start, true
  // after Replace.
  void SetServing(bool serving);

  // Takes no more calls; lets those under way end for `grace`, then cancels them. Blocks until all have ended.
  void Shutdown(absl::Duration grace);

 private:
  explicit RpcServer(RpcServerOptions options) : options_(std::move(options)) {}

  // Starts a server and makes it the acceptor's, in place of the one before. Errors: INTERNAL
  absl::Status Serve(std::vector<std::unique_ptr<grpc::Service>> services, int max_message_bytes, bool is_serving);

  const RpcServerOptions options_;
  std::vector<std::unique_ptr<grpc::Service>> services_;  // outlive the server
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::string address_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_RPC_SERVER_H_
