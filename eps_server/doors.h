#ifndef EPS_SERVER_DOORS_H_
#define EPS_SERVER_DOORS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/listen_address.h"
#include "common/grpc/server_keys.h"
#include "eps_server/daemon.h"
#include "eps_server/service/rpc_server.h"

namespace eps::server {

struct OpenedDoors {
  RpcServerOptions rpc;
  std::shared_ptr<const ServerKeysWatch> keys;  // what `rpc` goes by
};

// How a daemon that listens on `listen` lets peers in: checks that the doors suffice for the address, reads and checks
// their files, which are watched from then on, and lets this process open as many files as the connections need.
//
// Errors: CheckDoors', ServerKeysWatch::Begin's · FAILED_PRECONDITION the system allows fewer open files than
//         --max-connections needs
absl::StatusOr<OpenedDoors> OpenDoors(const ListenAddress& listen, const DaemonOptions& options);

}  // namespace eps::server

#endif  // EPS_SERVER_DOORS_H_
