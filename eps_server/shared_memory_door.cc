#include "eps_server/shared_memory_door.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<SharedMemoryServer>> OpenSharedMemory(const RunConfig& run,
                                                                     SharedMemoryOptions options) {
  if (run.transport == TransportChoice::kGrpc) return nullptr;
  options.max_inbox_bytes = MaxInboxBytes(*options.model, run);
  auto server = SharedMemoryServer::Start(options);
  if (server.ok()) {
    LogInfo("shared_memory_offered", {{"socket", (*server)->path()}});
    return server;
  }
  if (run.transport == TransportChoice::kSharedMemory) return Annotate(server.status(), "transport: SHARED_MEMORY");
  LogWarning("shared_memory_not_offered", {{"error", server.status().ToString()}});
  return nullptr;
}

std::string SharedMemorySocket(const std::unique_ptr<SharedMemoryServer>& server) {
  return server == nullptr ? "" : server->path();
}

}  // namespace eps::server
