#ifndef EPS_GPU_WORKER_TELEMETRY_WORKER_METRICS_H_
#define EPS_GPU_WORKER_TELEMETRY_WORKER_METRICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/telemetry/metric_table.h"

namespace eps::worker {

// Every metric of a worker. docs/metrics.md shows it and is compared with it by a test.
MetricTable WorkerMetricTable();

enum class WorkerPhase { kConnecting, kPreparing, kIdle, kRunning };
absl::string_view WorkerPhaseName(WorkerPhase phase);  // "connecting", ...

// What the page shows. Counters never fall while the process lives, whatever it attaches to.
struct WorkerView {
  WorkerPhase phase = WorkerPhase::kConnecting;
  int64_t attachments = 0;
  int64_t lost_daemons = 0;  // connections to a daemon that broke
  int64_t step = -1;         // of the newest assignment; -1: none yet
  int64_t vnodes = 0;        // of the newest assignment
  int64_t passes = 0;        // a token of a text is one, too
  double last_pass_seconds = 0;
  double pass_seconds = 0;
  std::map<std::string, double> wait_seconds;  // compute's, by cause
  int64_t device_cap_bytes = 0;
  int64_t device_arena_bytes = 0;
  int64_t device_peak_bytes = 0;
  int64_t device_outside_bytes = 0;
  int64_t host_bytes = 0;  // boundaries, swapped inner activations, gradients under way and a pass's steps, by the plan
};

// The page /metrics. `start_seconds`: when the worker started, since the epoch; `resident_bytes`: of the process.
std::string WorkerMetricsText(const WorkerView& view, double start_seconds, int64_t resident_bytes);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TELEMETRY_WORKER_METRICS_H_
