#ifndef EPS_SERVER_SERVICE_STARTING_SERVICE_H_
#define EPS_SERVER_SERVICE_STARTING_SERVICE_H_

#include <memory>
#include <vector>

#include "common/base/long_work.h"
#include "eps_server/daemon_identity.h"
#include "grpcpp/impl/service_type.h"

namespace eps::server {

// Both planes of a daemon that has not loaded its model yet: GetStatus says how far it is, Attach to ask again; other
// commands end with FAILED_PRECONDITION, a worker's streams with UNAVAILABLE. `work` outlives the server that they are registered with.
std::vector<std::unique_ptr<grpc::Service>> NewStartingServices(const DaemonIdentity& identity, const LongWork* work);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_STARTING_SERVICE_H_
