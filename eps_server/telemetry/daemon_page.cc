#include "eps_server/telemetry/daemon_page.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"
#include "common/telemetry/metric_page.h"
#include "eps_server/status_page/status_page.h"
#include "eps_server/telemetry/daemon_metrics.h"

namespace eps::server {

DaemonPage::DaemonPage(Options options)
    : options_(std::move(options)),
      start_seconds_(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())),
      view_([] { return DaemonView(); }) {}

absl::StatusOr<std::unique_ptr<DaemonPage>> DaemonPage::Start(Options options) {
  std::unique_ptr<DaemonPage> page(new DaemonPage(std::move(options)));
  HttpPaths paths = {{"/status.json", [page = page.get()] { return page->StatusAsJson(); }},
                     {"/metrics", [page = page.get()] { return page->Metrics(); }},
                     {"/healthz", [page = page.get()] { return page->Health(); }},
                     {"/readyz", [page = page.get()] { return page->Readiness(); }},
                     {"/targets", [page = page.get()] { return page->Targets(); }}};
  for (const StatusPageFile& file : StatusPageFiles()) {
    paths[std::string(file.path)] = [file] {
      return HttpReply{.content_type = std::string(file.content_type), .body = std::string(file.text)};
    };
  }
  auto http = HttpPage::Start(
      {.listen = page->options_.listen, .any_address = page->options_.any_address, .paths = std::move(paths)});
  if (!http.ok()) return Annotate(http.status(), "--metrics-listen");
  page->page_ = *std::move(http);
  return page;
}

void DaemonPage::Show(std::function<DaemonView()> view) {
  MutexLock lock(mu_);
  while (asking_) answered_.Wait(mu_);
  view_ = std::move(view);
}

DaemonView DaemonPage::View() {
  std::function<DaemonView()> ask;
  {
    MutexLock lock(mu_);
    ask = view_;
    asking_ = true;
  }
  DaemonView view = ask();
  MutexLock lock(mu_);
  asking_ = false;
  answered_.NotifyAll();
  return view;
}

HttpReply DaemonPage::Metrics() {
  return {.content_type = std::string(kMetricPageContentType), .body = DaemonMetricsText(View(), start_seconds_)};
}

HttpReply DaemonPage::Health() {
  const std::string phase = View().phase;
  return {.code = phase == run_state::kFailed ? 503 : 200, .body = phase + "\n"};
}

HttpReply DaemonPage::Targets() { return {.content_type = "application/json", .body = WorkerTargetsJson(View())}; }

HttpReply DaemonPage::StatusAsJson() {
  absl::StatusOr<std::string> text = options_.status_json(View());
  if (!text.ok()) return {.code = 500, .body = absl::StrCat(std::string(text.status().message()), "\n")};
  return {.content_type = "application/json", .body = *std::move(text)};
}

HttpReply DaemonPage::Readiness() {
  const std::string phase = View().phase;
  const bool ready =
      phase == run_state::kWaitingForWorkers || phase == run_state::kTraining || phase == run_state::kServing;
  return {.code = ready ? 200 : 503, .body = phase + "\n"};
}

}  // namespace eps::server
