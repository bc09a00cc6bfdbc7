#include "gpu_worker/telemetry/worker_page.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/telemetry/metric_page.h"
#include "common/telemetry/resident_bytes.h"

namespace eps::worker {
namespace {

// Of whoever typed it an address that is taken is as wrong as one that is none; of a worker FAILED_PRECONDITION says what its
// daemon thinks of it.
absl::Status OfFlag(absl::string_view flag, const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return Annotate(status, flag);
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

}  // namespace

WorkerPage::WorkerPage() : start_seconds_(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())) {}

absl::StatusOr<std::unique_ptr<WorkerPage>> WorkerPage::Start(const Options& options) {
  std::unique_ptr<WorkerPage> page(new WorkerPage());
  const auto metrics = [page = page.get()] {
    return HttpReply{.content_type = std::string(kMetricPageContentType),
                     .body = WorkerMetricsText(page->View(), page->start_seconds_, ResidentBytes())};
  };
  auto http = HttpPage::Start({.listen = options.listen,
                               .any_address = options.any_address,
                               .paths = {{"/metrics", metrics},
                                         {"/healthz", [page = page.get()] { return page->Phase(false); }},
                                         {"/readyz", [page = page.get()] { return page->Phase(true); }}}});
  if (!http.ok()) return OfFlag("--metrics-listen", http.status());
  page->page_ = *std::move(http);
  if (!options.health_listen.empty()) {
    auto health = HealthServer::Start(options.health_listen, options.any_address);
    if (!health.ok()) return OfFlag("--health-listen", health.status());
    page->health_ = *std::move(health);
  }
  return page;
}

void WorkerPage::Update(const std::function<void(WorkerView&)>& change) {
  MutexLock lock(mu_);
  const bool was_ready = IsReady(view_.phase);
  change(view_);
  // Under the lock, so that the last word is the newest; it is rare, and waits for nobody.
  if (health_ != nullptr && IsReady(view_.phase) != was_ready) health_->SetServing(!was_ready);
}

WorkerView WorkerPage::View() {
  MutexLock lock(mu_);
  return view_;
}

HttpReply WorkerPage::Phase(bool must_be_ready) {
  const WorkerPhase phase = View().phase;
  return {.code = must_be_ready && !IsReady(phase) ? 503 : 200, .body = absl::StrCat(WorkerPhaseName(phase), "\n")};
}

}  // namespace eps::worker
