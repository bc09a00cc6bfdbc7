#ifndef EPS_SERVER_DAEMON_FRONT_H_
#define EPS_SERVER_DAEMON_FRONT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/listen_address.h"
#include "common/base/long_work.h"
#include "common/run_folder/endpoint_file.h"
#include "eps_server/daemon.h"
#include "eps_server/daemon_identity.h"
#include "eps_server/service/rpc_server.h"
#include "eps_server/telemetry/daemon_page.h"
#include "grpcpp/impl/service_type.h"

namespace eps::server {

// Where a daemon is reached: its gRPC server, its HTTP page, and the file in its folder that says where they are. From Open
// on, while the model is loaded, they say how far that is; from GoOn on they are the daemon's own.
//
//   OUT/starting.json    from Open to GoOn, or to its end where the daemon does not get that far
//   OUT/endpoints.json   from GoOn on; stays
//
// Threads: one
class DaemonFront {
 public:
  // At `listen`, options.listen read, with the doors `rpc`; options.out is there. `work`: what is done until GoOn; it must live
  // until GoOn has succeeded or this is gone.
  // Errors: FAILED_PRECONDITION an address is in use · the system's, naming the file
  static absl::StatusOr<std::unique_ptr<DaemonFront>> Open(const DaemonOptions& options, const ListenAddress& listen,
                                                           RpcServerOptions rpc, const DaemonIdentity& identity,
                                                           const LongWork* work);
  ~DaemonFront();

  // The model is there: peers that wait come to `services`.
  // `max_message_bytes`: RpcServer's. Errors: as Open's
  absl::Status GoOn(std::vector<std::unique_ptr<grpc::Service>> services, int max_message_bytes);

  RpcServer& server() { return *server_; }
  DaemonPage& page() { return *page_; }
  // The page goes on without the rest.
  std::unique_ptr<DaemonPage> TakePage() { return std::move(page_); }

 private:
  explicit DaemonFront(std::string out) : out_(std::move(out)) {}

  Endpoint endpoint() const;

  const std::string out_;
  bool is_starting_ = false;  // starting.json is there
  std::unique_ptr<DaemonPage> page_;
  std::unique_ptr<RpcServer> server_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_DAEMON_FRONT_H_
