#ifndef EPS_SERVER_TELEMETRY_DAEMON_METRICS_H_
#define EPS_SERVER_TELEMETRY_DAEMON_METRICS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/telemetry/metric_table.h"
#include "eps_server/telemetry/daemon_view.h"

namespace eps::server {

// Every metric of the daemon. docs/metrics.md shows it and is compared with it by a test.
MetricTable DaemonMetricTable();

// The page /metrics. `start_seconds`: when the daemon started, since the epoch. Bounded: nothing that a worker says, no
// number of workers, vnodes, blobs or steps adds a series.
std::string DaemonMetricsText(const DaemonView& view, double start_seconds);

// The page /targets: the pages of the workers that are attached and told where theirs is, as Prometheus' http_sd_configs
// reads them.
std::string WorkerTargetsJson(const DaemonView& view);

}  // namespace eps::server

#endif  // EPS_SERVER_TELEMETRY_DAEMON_METRICS_H_
