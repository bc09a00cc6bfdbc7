#include "gpu_worker/worker.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "gpu_worker/attach_loop.h"
#include "gpu_worker/daemon_connections.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/device_registry.h"
#include "gpu_worker/leave_request.h"
#include "gpu_worker/profile/measure.h"
#include "gpu_worker/session.h"
#include "gpu_worker/telemetry/worker_metrics.h"
#include "gpu_worker/telemetry/worker_page.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/grpc_control.h"

namespace eps::worker {
namespace {

absl::StatusOr<Introduction> Introduce(const WorkerOptions& options) {
  EPS_ASSIGN_OR_RETURN(const DeviceProperties properties, ProbeDevice(options));
  return Introduction{.device_name = properties.name,
                      .device_model = properties.model,
                      .device_cap_bytes = options.device_memory_bytes,
                      .threads = options.threads};
}

}  // namespace

absl::StatusOr<DeviceProperties> ProbeDevice(const WorkerOptions& options) {
  EPS_ASSIGN_OR_RETURN(const DeviceBackend backend, FindDevice(options.device));
  return backend.probe(options.threads);
}

absl::StatusOr<Profile> MeasureDevice(const WorkerOptions& options, const RunConfig& run) {
  EPS_ASSIGN_OR_RETURN(const DeviceBackend backend, FindDevice(options.device));
  return MeasureProfile({.run = &run,
                         .backend = &backend,
                         .device = options.device,
                         .threads = options.threads,
                         .on_progress = [](const std::string& what, double share) {
                           LogInfo("measuring", {{"what", what}, {"percent", static_cast<int>(100 * share)}});
                         }});
}

absl::Status RunWorker(const WorkerOptions& user_options) {
  WorkerOptions options = user_options;
  const DevicePlace place = FindPlace(options.device, options.host_turn, options.host_workers);
  options.device = place.device;
  EPS_ASSIGN_OR_RETURN(const DeviceBackend backend, FindDevice(options.device));
  if (options.device_memory_bytes == 0) {
    const absl::StatusOr<int64_t> memory_bytes = backend.default_memory_bytes(place.sharers);
    EPS_RETURN_IF_ERROR(NotOfTheDevice(memory_bytes.status()));
    options.device_memory_bytes = *memory_bytes;
    options.is_default_memory = true;
  }
  absl::StatusOr<Introduction> introduced = Introduce(options);
  EPS_RETURN_IF_ERROR(NotOfTheDevice(introduced.status()));
  Introduction introduction = *std::move(introduced);
  EPS_ASSIGN_OR_RETURN(const auto page, WorkerPage::Start({.listen = options.metrics_listen,
                                                           .any_address = options.metrics_any_address,
                                                           .health_listen = options.health_listen}));
  introduction.metrics_address = page->address();
  page->Update([&](WorkerView& view) { view.device_cap_bytes = options.device_memory_bytes; });
  LogInfo("worker_page", {{"metrics", page->address()}, {"health", page->health_address()}});
  const DaemonConnections connections = ConnectionsTo(options.address, options.credentials);
  const auto run_session = [&](Attachment attachment) {
    LogInfo("worker_attached", {{"worker", attachment.worker_id.value()},
                                {"incarnation", attachment.incarnation},
                                {"device", introduction.device_name},
                                {"device_model", introduction.device_model}});
    if (options.trace != nullptr) {
      options.trace->NameProcess(absl::StrCat("worker ", attachment.worker_id.value()));
      options.trace->SetClockOffset(attachment.clock_offset);
    }
    return RunSession(options, backend, connections, std::move(attachment), *page);
  };
  return RunAttachLoop(
      {.address = options.address,
       .reconnect = options.reconnect,
       .attach =
           [&](absl::Duration timeout) {
             return GrpcAttach(options.address, introduction, timeout, options.credentials());
           },
       .run_session = run_session,
       .on_lost =
           [&page](bool was_stopped) {
             page->Update([was_stopped](WorkerView& view) {
               view.phase = WorkerPhase::kConnecting;
               if (!was_stopped) ++view.lost_daemons;
             });
           },
       .is_to_leave = [&options] { return options.leave != nullptr && options.leave->signal() != 0; }});
}

}  // namespace eps::worker
