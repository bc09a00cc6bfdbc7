#ifndef EPS_GPU_WORKER_TELEMETRY_WORKER_PAGE_H_
#define EPS_GPU_WORKER_TELEMETRY_WORKER_PAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/telemetry/http_page.h"
#include "gpu_worker/telemetry/health_server.h"
#include "gpu_worker/telemetry/worker_metrics.h"

namespace eps::worker {

// A worker's HTTP page: /metrics, /healthz (200 as long as the process works), /readyz (200 while it is attached and
// has planned; else 503). The body of the latter two is the phase. Beside it, where it is asked for, grpc.health.v1:
// SERVING while /readyz says 200.
//
// Threads: safe
class WorkerPage {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: the system chooses
    bool any_address = false;            // of which others than this host may be reached
    std::string health_listen = "";      // of grpc.health.v1; "": it is not served
  };
  // Errors, beginning with the flag's name: INVALID_ARGUMENT for an address that cannot be listened on · HttpPage::Start's
  static absl::StatusOr<std::unique_ptr<WorkerPage>> Start(const Options& options);

  const std::string& address() const { return page_->address(); }
  std::string health_address() const { return health_ == nullptr ? "" : health_->address(); }  // "": not served

  // Changes what is shown. `change` runs under the page's lock.
  void Update(const std::function<void(WorkerView&)>& change) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  WorkerPage();
  WorkerView View() ABSL_LOCKS_EXCLUDED(mu_);
  HttpReply Phase(bool must_be_ready);
  static bool IsReady(WorkerPhase phase) { return phase == WorkerPhase::kIdle || phase == WorkerPhase::kRunning; }

  const double start_seconds_;
  Mutex mu_;
  WorkerView view_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HealthServer> health_;
  std::unique_ptr<HttpPage> page_;  // last: its thread uses all of the above
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TELEMETRY_WORKER_PAGE_H_
