#ifndef EPS_SERVER_TELEMETRY_DAEMON_METRICS_H_
#define EPS_SERVER_TELEMETRY_DAEMON_METRICS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/telemetry/metric_table.h"
#include "eps_server/step/run_status.h"

namespace eps::server {

// Every metric of the daemon. docs/metrics.md shows it and is compared with it by a test.
MetricTable DaemonMetricTable();

// What the page shows: all of one moment, or about.
struct DaemonView {
  std::string phase = "starting";  // as StatusReply.state
  RunStatus status;
  int64_t start_done_bytes = 0, start_total_bytes = 0;  // while starting: LongWork's
  int64_t expected_resident_bytes = 0;    // what `eps plan` says that the daemon takes; 0: not known
  int64_t checkpoint_every_steps = 0;     // of the RunSpec
  double floor_bytes_per_second = 0;      // of one of the optimizer's threads; 0: not measured
  int64_t checkpoint_buffer_bytes = 0;    // what copies for a checkpoint wait in; taken all the time
  double certificate_expiry_seconds = 0;  // since the epoch; 0: there is none
  int64_t grpc_pulled_bytes = 0, grpc_pushed_bytes = 0;
  int64_t shared_memory_pulled_bytes = 0, shared_memory_pushed_bytes = 0;
};

// The page /metrics. `start_seconds`: when the daemon started, since the epoch. Bounded: nothing that a worker says, no
// number of workers, vnodes, blobs or steps adds a series.
std::string DaemonMetricsText(const DaemonView& view, double start_seconds);

// The page /targets: the pages of the workers that are attached and told where theirs is, as Prometheus' http_sd_configs
// reads them.
std::string WorkerTargetsJson(const DaemonView& view);

}  // namespace eps::server

#endif  // EPS_SERVER_TELEMETRY_DAEMON_METRICS_H_
