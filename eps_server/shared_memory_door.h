#ifndef EPS_SERVER_SHARED_MEMORY_DOOR_H_
#define EPS_SERVER_SHARED_MEMORY_DOOR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "eps_server/service/shared_memory_server.h"

namespace eps::server {

// Offers shared memory as the run's `transport` says; null where it says GRPC, and where it says AUTO and the system
// cannot: the log says why.
// Errors: SharedMemoryServer's, where the run insists on shared memory
absl::StatusOr<std::unique_ptr<SharedMemoryServer>> OpenSharedMemory(const RunConfig& run, SharedMemoryOptions options);

// What workers are told: where to connect, "" for nowhere.
std::string SharedMemorySocket(const std::unique_ptr<SharedMemoryServer>& server);

}  // namespace eps::server

#endif  // EPS_SERVER_SHARED_MEMORY_DOOR_H_
