#include "eps_server/doors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/open_files.h"
#include "common/base/status_macros.h"
#include "common/grpc/server_credentials.h"
#include "eps_server/service/check_doors.h"
#include "eps_server/service/method_roles.h"

namespace eps::server {
namespace {

// How many connections there may be: as many as were asked for, or by default fewer where the system allows fewer files.
absl::StatusOr<int> AllowConnections(const DaemonOptions& options) {
  const bool asked = options.max_connections > 0;
  const int64_t wanted = asked ? options.max_connections : DefaultConnections(options.expected_workers);
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError(std::strerror(errno));
  const auto most_files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_max, std::numeric_limits<int32_t>::max()));
  const int64_t least = asked ? wanted : LeastConnections(options.expected_workers);
  const int64_t connections = std::clamp(ConnectionsWithin(most_files), least, wanted);
  const int64_t needed = NeededOpenFiles(connections);
  if (most_files < needed) {
    return absl::FailedPreconditionError(
        absl::StrCat(connections, " connections need ", needed, " open files, and the system allows ", most_files,
                     ": raise it (ulimit -n, LimitNOFILE=)", asked ? ", or give a smaller --max-connections" : ""));
  }
  if (static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int32_t>::max())) < needed) {
    limit.rlim_cur = static_cast<rlim_t>(needed);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError(std::strerror(errno));
  }
  return static_cast<int>(connections);
}

}  // namespace

absl::StatusOr<OpenedDoors> OpenDoors(const ListenAddress& listen, const DaemonOptions& options) {
  EPS_RETURN_IF_ERROR(CheckDoors(listen, options.doors));
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<ServerKeysWatch> keys, ServerKeysWatch::Begin(options.doors, absl::Now()));
  RpcServerOptions rpc = {.credentials = NewServerCredentials(keys, RoleOfMethod)};
  EPS_ASSIGN_OR_RETURN(rpc.limits.max_connections, AllowConnections(options));
  // Who hangs is lost when its lease is over, and not before.
  rpc.limits.keepalive_answer = std::max(rpc.limits.keepalive_answer, options.lease);
  LogInfo("doors", {{"tls", options.doors.tls() ? "yes" : "no"},
                    {"client_certificates", options.doors.client_ca_file.empty() ? "no" : "yes"},
                    {"tokens", static_cast<int64_t>(keys->tokens()->size())},
                    {"max_connections", rpc.limits.max_connections}});
  if (!options.doors.knows_peers()) {  // on loopback: elsewhere it would have been refused
    LogWarning("door_without_token",
               {{"open_to", "every user of this machine"}, {"advice", "give --token-file (docs/security.md)"}});
  }
  if (!listen.is_loopback() && options.doors.client_ca_file.empty()) {
    // A token is compared when gRPC has read a call's headers: a stranger reaches that much of gRPC.
    LogWarning("door_without_client_certificates", {{"advice", "give --tls-client-ca too (docs/security.md)"}});
  }
  return OpenedDoors{.rpc = std::move(rpc), .keys = keys};
}

}  // namespace eps::server
