#ifndef EPS_GPU_WORKER_TELEMETRY_HEALTH_SERVER_H_
#define EPS_GPU_WORKER_TELEMETRY_HEALTH_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"

namespace eps::worker {

// A gRPC server with nothing but grpc.health.v1, for the server as a whole: NOT_SERVING until SetServing. Without TLS and
// without a password, as the HTTP page. What peers may take of it is bounded.
//
// Threads: safe; gRPC's own answer
class HealthServer {
 public:
  // Errors: CheckPageAddress's · FAILED_PRECONDITION naming the address: it is taken, or not this host's
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& listen, bool any_address);
  ~HealthServer();

  // HOST:PORT, with the port that the system chose.
  const std::string& address() const { return address_; }
  void SetServing(bool serving);

 private:
  HealthServer() = default;

  grpc::CallbackGenericService others_;  // answers all other calls: UNIMPLEMENTED
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TELEMETRY_HEALTH_SERVER_H_
