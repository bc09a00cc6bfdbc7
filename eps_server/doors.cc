#include "eps_server/doors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/grpc/credentials.h"

namespace eps::server {
namespace {

constexpr int kMinConnections = 1024;
constexpr int kConnectionsPerWorker = 8;  // a worker has four; as many again while it attaches anew
constexpr rlim_t kOtherFiles = 256;       // data, checkpoints, logs, libraries' own

absl::Status AllowOpenFiles(int max_connections) {
  const rlim_t needed = static_cast<rlim_t>(max_connections) + kOtherFiles;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError(std::strerror(errno));
  if (limit.rlim_cur >= needed) return absl::OkStatus();
  if (limit.rlim_max < needed) {
    return absl::FailedPreconditionError(absl::StrCat(max_connections, " connections need ", needed,
                                                      " open files, and the system allows ", limit.rlim_max,
                                                      " (ulimit -Hn); give a smaller --max-connections"));
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError(std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RpcServerOptions> OpenDoors(const ListenAddress& listen, const DaemonOptions& options) {
  EPS_RETURN_IF_ERROR(CheckDoors(listen, options.doors));
  RpcServerOptions rpc;
  EPS_ASSIGN_OR_RETURN(rpc.credentials, NewServerCredentials(options.doors, absl::Now()));
  rpc.limits.max_connections = options.max_connections;
  if (options.max_connections == 0) {
    rpc.limits.max_connections = std::max(kMinConnections, kConnectionsPerWorker * options.expected_workers);
  }
  EPS_RETURN_IF_ERROR(AllowOpenFiles(rpc.limits.max_connections));
  LogInfo("doors", {{"tls", options.doors.tls() ? "yes" : "no"},
                    {"client_certificates", options.doors.client_ca_file.empty() ? "no" : "yes"},
                    {"token", options.doors.token_file.empty() ? "no" : "yes"},
                    {"max_connections", rpc.limits.max_connections}});
  if (!IsLoopbackHost(listen.host) && options.doors.client_ca_file.empty()) {
    // A token is compared when gRPC has read a call's headers: a stranger reaches that much of gRPC.
    LogWarning("door_without_client_certificates", {{"advice", "give --tls-client-ca too (docs/security.md)"}});
  }
  return rpc;
}

}  // namespace eps::server
