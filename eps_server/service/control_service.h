#ifndef EPS_SERVER_SERVICE_CONTROL_SERVICE_H_
#define EPS_SERVER_SERVICE_CONTROL_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/grpc/keys_state.h"
#include "eps_server/daemon_identity.h"
#include "eps_server/service/serving_host.h"
#include "eps_server/service/worker_host.h"
#include "eps_server/step/coordinator.h"
#include "grpcpp/impl/service_type.h"

namespace eps::server {

struct ControlServiceOptions {
  DaemonIdentity identity;
  std::string run_config;  // what workers get: SerializeRunConfig
  // Where workers of this host may connect; "": nowhere.
  std::string shared_memory_socket = "";
  WorkerHost* host = nullptr;  // these outlive the server that the service is registered with
  // Exactly one of these two.
  Coordinator* coordinator = nullptr;  // while training
  int most_workers = 1;                // the same: that have something to do, batch.virtual_nodes
  ServingHost* serving = nullptr;      // while serving
  Version serving_version;
  RunStatus serving_status;                                // what GetStatus says of the model that is served
  std::function<void(const std::string& reason)> on_stop;  // Stop was called while serving
  std::function<KeysState()> keys = [] { return KeysState(); };
};

// The control plane (proto/control.proto): translates between messages and the coordinator (or the host that serves),
// and decides nothing.
std::unique_ptr<grpc::Service> NewControlService(ControlServiceOptions options);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_CONTROL_SERVICE_H_
