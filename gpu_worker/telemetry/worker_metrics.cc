#include "gpu_worker/telemetry/worker_metrics.h"

#include "common/base/wait_cause.h"
#include "common/telemetry/metric_page.h"

namespace eps::worker {
namespace {

constexpr MetricType kCounter = MetricType::kCounter;

constexpr absl::string_view kPhases[] = {"connecting", "preparing", "idle", "running"};
constexpr absl::string_view kDeviceKinds[] = {"cap", "arena", "peak", "outside"};
constexpr absl::string_view kHostKinds[] = {"planned", "resident"};

constexpr MetricSpec kStart{.name = "worker_start_time_seconds",
                            .help = "When the worker started, in seconds since 1970-01-01 UTC."};
constexpr MetricSpec kPhase{
    .name = "worker_phase",
    .help =
        "1 for what the worker does, 0 for the others: it looks for a daemon, plans, waits for an "
        "assignment or a text, or computes one.",
    .label = "phase",
    .label_values = kPhases};
constexpr MetricSpec kAttachments{
    .name = "worker_attachments_total", .type = kCounter, .help = "Times that it attached to a daemon."};
constexpr MetricSpec kLostDaemons{.name = "worker_lost_daemons_total",
                                  .type = kCounter,
                                  .help = "Connections to a daemon that broke before the run was over."};
constexpr MetricSpec kStep{.name = "worker_step", .help = "Step of the newest assignment; no sample before the first."};
constexpr MetricSpec kVnodes{.name = "worker_vnodes", .help = "Virtual nodes of the newest assignment."};
constexpr MetricSpec kPasses{
    .name = "worker_passes_total", .type = kCounter, .help = "Assignments computed; of texts, their tokens."};
constexpr MetricSpec kLastPass{.name = "worker_pass_seconds", .help = "Time of the newest pass."};
constexpr MetricSpec kPassSeconds{.name = "worker_pass_seconds_total", .type = kCounter, .help = "Time of all passes."};
constexpr MetricSpec kWaits{.name = "worker_wait_seconds_total",
                            .type = kCounter,
                            .help = "Part of worker_pass_seconds_total in which compute waited, by cause.",
                            .label = "cause",
                            .label_values = kWaitCauses};
constexpr MetricSpec kDevice{
    .name = "worker_device_memory_bytes",
    .help =
        "Of the device: the cap, the plan's arena, its peak so far, what libraries are known to hold outside of it.",
    .label = "kind",
    .label_values = kDeviceKinds};
constexpr MetricSpec kHost{
    .name = "worker_host_memory_bytes",
    .help =
        "Of the host: what stashed activations, gradients under way and the steps of a pass take by the plan, what the "
        "process holds.",
    .label = "kind",
    .label_values = kHostKinds};

constexpr const MetricSpec* kTable[] = {&kStart,  &kPhase,    &kAttachments, &kLostDaemons, &kStep,   &kVnodes,
                                        &kPasses, &kLastPass, &kPassSeconds, &kWaits,       &kDevice, &kHost};

}  // namespace

MetricTable WorkerMetricTable() { return kTable; }

absl::string_view WorkerPhaseName(WorkerPhase phase) { return kPhases[static_cast<size_t>(phase)]; }

std::string WorkerMetricsText(const WorkerView& view, double start_seconds, int64_t resident_bytes) {
  MetricPage page(kTable);
  page.Set(kStart, start_seconds);
  page.SetOneOf(kPhase, WorkerPhaseName(view.phase));
  page.Set(kAttachments, static_cast<double>(view.attachments));
  page.Set(kLostDaemons, static_cast<double>(view.lost_daemons));
  if (view.step >= 0) {
    page.Set(kStep, static_cast<double>(view.step));
    page.Set(kVnodes, static_cast<double>(view.vnodes));
  }
  page.Set(kPasses, static_cast<double>(view.passes));
  if (view.passes > 0) page.Set(kLastPass, view.last_pass_seconds);
  page.Set(kPassSeconds, view.pass_seconds);
  for (const absl::string_view cause : kWaitCauses) {
    const auto found = view.wait_seconds.find(std::string(cause));
    page.Set(kWaits, cause, found == view.wait_seconds.end() ? 0 : found->second);
  }
  page.Set(kDevice, "cap", static_cast<double>(view.device_cap_bytes));
  page.Set(kDevice, "arena", static_cast<double>(view.device_arena_bytes));
  page.Set(kDevice, "peak", static_cast<double>(view.device_peak_bytes));
  page.Set(kDevice, "outside", static_cast<double>(view.device_outside_bytes));
  page.Set(kHost, "planned", static_cast<double>(view.host_bytes));
  page.Set(kHost, "resident", static_cast<double>(resident_bytes));
  return page.Text();
}

}  // namespace eps::worker
