#include "eps_server/daemon.h"

#include "common/base/listen_address.h"
#include "common/base/status_macros.h"
#include "common/telemetry/http_page.h"
#include "eps_server/serving_daemon.h"
#include "eps_server/training_daemon.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(const DaemonOptions& options, LongWork& work) {
  const absl::StatusOr<ListenAddress> listen = ParseListenAddress(options.listen);
  EPS_RETURN_IF_ERROR_WITH(listen.status(), "--listen");
  EPS_RETURN_IF_ERROR_WITH(CheckPageAddress(options.metrics_listen, options.metrics_any_address), "--metrics-listen");
  return options.serve_folder.empty() ? CreateTrainingDaemon(options, *listen, work)
                                      : CreateServingDaemon(options, *listen, work);
}

}  // namespace eps::server
