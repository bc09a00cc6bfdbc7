#ifndef EPS_SERVER_SERVING_DAEMON_H_
#define EPS_SERVER_SERVING_DAEMON_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/listen_address.h"
#include "eps_server/daemon.h"

namespace eps::server {

// Daemon::Create for a checkpoint that is served.
absl::StatusOr<std::unique_ptr<Daemon>> CreateServingDaemon(const DaemonOptions& options, const ListenAddress& listen,
                                                            LongWork& work);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVING_DAEMON_H_
