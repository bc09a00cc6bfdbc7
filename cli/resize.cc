// eps resize: makes a run have so many workers.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "cli/worker_count.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);

struct ResizeFlags {
  DaemonFlags daemon;
  int workers = 0;
  int timeout_seconds = 120;
  bool no_wait = false;
};

// Those that stay unless somebody lets them go, the newest first.
std::vector<int64_t> StayingWorkers(const proto::StatusReply& status) {
  std::vector<int64_t> staying;
  for (const proto::WorkerStatus& worker : status.workers()) {
    if (IsAttached(worker) && worker.state() != "leaving") staying.push_back(worker.worker_id());
  }
  std::sort(staying.begin(), staying.end(), std::greater<>());
  return staying;
}

absl::Status LetGo(const ResizeFlags& flags, DaemonClient& client, std::vector<int64_t> leaving,
                   const proto::StatusReply& status) {
  EPS_RETURN_IF_ERROR(client.Drain(leaving, kCallTimeout));
  std::reverse(leaving.begin(), leaving.end());
  if (!flags.no_wait) EPS_RETURN_IF_ERROR(WaitUntilWorkersLeft(client, leaving, status));
  std::printf("%s %s\n", WorkersText(leaving).c_str(),
              flags.no_wait ? "will leave after what is being computed there" : "left");
  return absl::OkStatus();
}

absl::Status StartMore(const ResizeFlags& flags, DaemonClient& client, int more, const proto::StatusReply& status) {
  EPS_RETURN_IF_ERROR(client.StartWorkers(more, kCallTimeout));
  if (!flags.no_wait) {
    EPS_RETURN_IF_ERROR(WaitUntilWorkersAreReady(client, flags.workers, absl::Seconds(flags.timeout_seconds), status));
  }
  const bool is_one = more == 1;
  std::printf("%d more worker%s %s\n", more, is_one ? "" : "s",
              flags.no_wait ? "will be started" : (is_one ? "computes" : "compute"));
  return absl::OkStatus();
}

absl::Status RunResize(const ResizeFlags& flags, DaemonClient& client) {
  EPS_ASSIGN_OR_RETURN(const proto::StatusReply status, client.Status(kCallTimeout));
  if (status.state() != "training") {
    return absl::FailedPreconditionError(
        absl::StrCat("the run is not training, its state is \"", status.state(), "\": there is nothing to resize"));
  }
  std::vector<int64_t> staying = StayingWorkers(status);
  const int present = static_cast<int>(staying.size());
  if (flags.workers > present) return StartMore(flags, client, flags.workers - present, status);
  if (flags.workers < present) {
    staying.resize(static_cast<size_t>(present - flags.workers));
    return LetGo(flags, client, staying, status);
  }
  std::printf("there are %d already\n", present);
  return absl::OkStatus();
}

}  // namespace

void AddResize(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("resize",
                                         "Makes a run have so many workers: lets the newest go, or has eps train start "
                                         "more where it runs. No step is lost, and "
                                         "no bit changes");
  auto flags = std::make_shared<ResizeFlags>();
  command->add_option("WORKERS", flags->workers, "How many there are to be")->required()->check(CLI::Range(1, 4096));
  command->add_option("--timeout", flags->timeout_seconds, "How long to wait until those that are started compute")
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_flag("--no-wait", flags->no_wait, "Do not wait until they are gone, or compute");
  flags->daemon.AddTo(*command);
  command->callback([flags, exit_code] {
    *exit_code = flags->daemon.Run([&](DaemonClient& client) { return RunResize(*flags, client); });
  });
}

}  // namespace eps::cli
