#include "eps_server/daemon.h"

#include "common/base/status_macros.h"
#include "eps_server/service/listen_address.h"
#include "eps_server/serving_daemon.h"
#include "eps_server/training_daemon.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(const DaemonOptions& options) {
  EPS_ASSIGN_OR_RETURN(const ListenAddress listen, ParseListenAddress(options.listen));
  return options.serve_folder.empty() ? CreateTrainingDaemon(options, listen) : CreateServingDaemon(options, listen);
}

}  // namespace eps::server
