#include "gpu_worker/worker.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device_registry.h"
#include "gpu_worker/profile/measure.h"
#include "gpu_worker/session.h"
#include "gpu_worker/telemetry/worker_metrics.h"
#include "gpu_worker/telemetry/worker_page.h"
#include "gpu_worker/transport/grpc_control.h"

namespace eps::worker {
namespace {

constexpr absl::Duration kFirstWait = absl::Milliseconds(100);
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kSayStarting = absl::Seconds(30);

// The same again later may work: the daemon is away, was restarted, or has given up this worker's lease. Not so where the
// run has failed (FAILED_PRECONDITION).
bool MayRetry(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kNotFound:
      return true;
    default:
      return false;
  }
}

// Whoever answered at the address is not the daemon that --tls-ca stands for, and will not become it. gRPC gives such a
// handshake no code of its own.
bool IsAnotherDaemon(const absl::Status& status) {
  return absl::StrContains(status.message(), "certificate verify failed") ||
         absl::StrContains(status.message(), "is not in peer certificate");
}

absl::StatusOr<Introduction> Introduce(const WorkerOptions& options) {
  EPS_ASSIGN_OR_RETURN(const DeviceProperties properties, ProbeDevice(options));
  return Introduction{.device_name = properties.name,
                      .device_model = properties.model,
                      .device_cap_bytes = options.device_memory_bytes,
                      .threads = options.threads};
}

// Attaches, waiting longer and longer between attempts, until `options.reconnect` has passed since the daemon was lost,
// or was last heard of: for one that says that it starts, which may take hours, as long as it says so. `first_error` is
// what made us try; it is returned if nothing helps.
absl::StatusOr<Attachment> AttachWithPatience(const WorkerOptions& options, const Introduction& introduction,
                                              absl::Status first_error) {
  const MonotonicClock clock = SteadyClock();
  absl::Duration deadline = clock() + options.reconnect;
  absl::Duration next_said = -absl::InfiniteDuration();
  bool was_starting = false;
  for (absl::Duration wait = kFirstWait;; wait = std::min(wait * 2, kLongestWait)) {
    auto answer =
        GrpcAttach(options.address, introduction, std::max(deadline - clock(), absl::Seconds(1)), options.credentials);
    const absl::Duration now = clock();
    if (answer.ok()) {
      if (auto* attachment = std::get_if<Attachment>(&*answer)) return std::move(*attachment);
      if (now >= next_said) {
        LogInfo("worker_waits_for_daemon",
                {{"address", options.address}, {"starting", std::get<StartingDaemon>(*answer).what}});
        next_said = now + kSayStarting;
      }
      first_error = absl::OkStatus();
      was_starting = true;
      absl::SleepFor(wait);
      continue;
    }
    if (!MayRetry(answer.status()) || IsAnotherDaemon(answer.status())) return NotOfTheDevice(answer.status());
    if (std::exchange(was_starting, false)) {  // it is away from now on
      deadline = now + options.reconnect;
      wait = kFirstWait;
    }
    if (first_error.ok()) {
      first_error = answer.status();
      LogInfo("worker_waits_for_daemon", {{"address", options.address}, {"error", first_error.ToString()}});
    }
    if (now >= deadline) return first_error;
    absl::SleepFor(std::min(wait, deadline - now));
  }
}

// What goes wrong once the worker has joined is not its user's input.
absl::Status AfterAttach(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? absl::InternalError(status.message()) : status;
}

// What goes wrong in the middle of a run does not say that its device is too small for it, either.
absl::Status AfterStart(const absl::Status& status) { return AfterAttach(NotOfTheDevice(status)); }

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
  absl::Status lost;                // why the connection before was lost
  uint64_t failed_incarnation = 0;  // of the daemon that the last session could not be opened with; 0: it could
  while (true) {
    EPS_ASSIGN_OR_RETURN(Attachment attachment, AttachWithPatience(options, introduction, lost));
    LogInfo("worker_attached", {{"worker", attachment.worker_id.value()},
                                {"incarnation", attachment.incarnation},
                                {"device", introduction.device_name},
                                {"device_model", introduction.device_model}});
    if (options.trace != nullptr) {
      options.trace->NameProcess(absl::StrCat("worker ", attachment.worker_id.value()));
      options.trace->SetClockOffset(attachment.clock_offset);
    }
    const uint64_t incarnation = attachment.incarnation;
    {  // gone before it is asked for signals: one that comes later has no daemon to ask, and ends the worker at once
      const auto session = Session::Open(options, backend, std::move(attachment), *page);
      if (session.ok()) {
        failed_incarnation = 0;
        const Session::End end = (*session)->Run();
        if (!end.link_failed || !MayRetry(end.status)) return AfterStart(end.status);
        lost = end.status;
      } else {
        // The daemon may have gone right after it let us in. One that is still there would refuse us again.
        if (!MayRetry(session.status()) || incarnation == failed_incarnation) return AfterAttach(session.status());
        failed_incarnation = incarnation;
        lost = session.status();
      }
    }
    if (options.leave != nullptr && options.leave->signal() != 0) {  // its part of the step is computed anew by others
      LogWarning("worker_lost_daemon", {{"error", lost.ToString()}, {"next", "ends, as it was asked to leave"}});
      return absl::OkStatus();
    }
    page->Update([](WorkerView& view) {
      view.phase = WorkerPhase::kConnecting;
      ++view.lost_daemons;
    });
    LogWarning("worker_lost_daemon", {{"error", lost.ToString()}});
    absl::SleepFor(kFirstWait);  // a daemon that lets us in and ends us at once is not asked without a pause
  }
}

}  // namespace eps::worker
