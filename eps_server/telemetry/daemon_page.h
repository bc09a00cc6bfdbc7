#ifndef EPS_SERVER_TELEMETRY_DAEMON_PAGE_H_
#define EPS_SERVER_TELEMETRY_DAEMON_PAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/telemetry/http_page.h"
#include "eps_server/telemetry/daemon_view.h"

namespace eps::server {

// The daemon's HTTP page, which answers from the first moment on, while the model is loaded too.
//
//   /         the run for people, in a browser: StatusPageFiles, which ask for
//   /status.json
//   /metrics  for Prometheus
//   /healthz  200 as long as the process works, 503 once the run has failed
//   /readyz   200 while workers may attach: waiting for them, training, serving; else 503. The body is the phase
//   /targets  the pages of its workers, for Prometheus' http_sd_configs
//
// Threads: safe
class DaemonPage {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HttpPage's, as is the next
    bool any_address = false;
    // Required: what /status.json says of the view. Called by the page's thread, one at a time. It is passed in, as
    // protobuf's messages are of the service alone.
    std::function<absl::StatusOr<std::string>(const DaemonView&)> status_json;
  };
  // Errors: HttpPage::Start's, beginning with the flag's name
  static absl::StatusOr<std::unique_ptr<DaemonPage>> Start(Options options);

  const std::string& address() const { return page_->address(); }

  // What is shown from now on is what `view` returns; called by the page's thread, without a lock. Waits for the call
  // under way: the function before is not called any more after it. Before the first Show the phase is "starting".
  void Show(std::function<DaemonView()> view) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit DaemonPage(Options options);
  DaemonView View() ABSL_LOCKS_EXCLUDED(mu_);
  HttpReply Metrics();
  HttpReply Health();
  HttpReply Readiness();
  HttpReply Targets();
  HttpReply StatusAsJson();

  const Options options_;
  const double start_seconds_;
  Mutex mu_;
  CondVar answered_;
  std::function<DaemonView()> view_ ABSL_GUARDED_BY(mu_);
  bool asking_ ABSL_GUARDED_BY(mu_) = false;  // a copy of it: by the page's thread, which is one
  std::unique_ptr<HttpPage> page_;            // last: its thread uses all of the above
};

}  // namespace eps::server

#endif  // EPS_SERVER_TELEMETRY_DAEMON_PAGE_H_
