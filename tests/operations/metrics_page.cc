#include "tests/operations/metrics_page.h"

#include "absl/strings/str_cat.h"
#include "common/telemetry/metric_table.h"
#include "eps_server/telemetry/daemon_metrics.h"
#include "gpu_worker/telemetry/worker_metrics.h"

namespace eps {

std::string MetricsMarkdown() {
  const MetricTable daemon = server::DaemonMetricTable(), worker = worker::WorkerMetricTable();
  return absl::StrCat(
      "# Metrics\n"
      "\n"
      "Made from the tables in the code, by `bazel run //tests/operations:metrics_doc`; a test compares.\n"
      "\n"
      "Each program serves `/metrics` in Prometheus' text format, with `/healthz` and `/readyz` beside it\n"
      "([operations.md](operations.md#metrics-and-health)). Units are base units: seconds, bytes. A value that is not "
      "known,\n"
      "such as the time left before the first step, has no sample.\n"
      "\n"
      "**Bounded.** The daemon's page never has more than ",
      MaxSeries(daemon), " series, a worker's never more than ", MaxSeries(worker),
      ". Labels are closed sets,\n"
      "listed below; no number of workers, virtual nodes, blobs or steps adds a series. What is of each worker is on "
      "its own\n"
      "page.\n"
      "\n"
      "## eps_server\n",
      MetricTableMarkdown(daemon), "\n## gpu_worker\n", MetricTableMarkdown(worker));
}

}  // namespace eps
