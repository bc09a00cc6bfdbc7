// eps resize: makes a run have so many workers.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
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

// The `count` that came last.
std::vector<int64_t> NewestWorkers(const proto::StatusReply& status, int count) {
  std::vector<int64_t> workers;
  for (const proto::WorkerStatus& worker : status.workers()) {
    if (Stays(worker)) workers.push_back(worker.worker_id());
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(workers.begin(), workers.end() - count);
  return workers;
}

std::string ComputingText(int workers) {
  return absl::StrCat(workers, workers == 1 ? " worker computes" : " workers compute");
}

absl::Status RunResize(const ResizeFlags& flags, DaemonClient& client) {
  EPS_ASSIGN_OR_RETURN(proto::StatusReply status, client.Status(kCallTimeout));
  if (!MayGrow(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run is not training, its state is \"", status.state(), "\": there is nothing to resize"));
  }
  // An order that is being carried out is replaced, and not counted on.
  const bool is_starting = status.start_order().number() > 0 && !status.start_order().is_over();
  int excess = CountStaying(status) - flags.workers;
  if (!is_starting && excess > 0)
    return LetWorkersGo(flags.daemon, client, NewestWorkers(status, excess), flags.no_wait, status);
  if (!is_starting && CountReady(status) == flags.workers) {
    std::printf("%s already\n", ComputingText(flags.workers).c_str());
    return absl::OkStatus();
  }
  // Who is being started for a larger number cannot be asked to leave before it has attached: that is waited for in any
  // case, or there would be too many in the end.
  const bool may_be_too_many = is_starting && (status.start_order().workers() > flags.workers || excess > 0);
  EPS_ASSIGN_OR_RETURN(const int64_t order, client.StartWorkers(flags.workers, kCallTimeout));
  if (flags.no_wait && !may_be_too_many) {
    std::printf("%d %s asked for\n", flags.workers, flags.workers == 1 ? "worker is" : "workers are");
    return absl::OkStatus();
  }
  EPS_RETURN_IF_ERROR(WaitForStartOrder(flags.daemon, client, order, absl::Seconds(flags.timeout_seconds), status));
  EPS_ASSIGN_OR_RETURN(status, client.Status(kCallTimeout));
  excess = CountStaying(status) - flags.workers;
  if (excess > 0) return LetWorkersGo(flags.daemon, client, NewestWorkers(status, excess), flags.no_wait, status);
  std::printf("%s\n", ComputingText(flags.workers).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddResize(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("resize",
                                         "Makes a run have so many workers: lets the newest go, or has eps train start "
                                         "more where it runs. No step is lost, and "
                                         "on one device model no bit changes");
  auto flags = std::make_shared<ResizeFlags>();
  command->add_option("WORKERS", flags->workers, "How many there are to be, at most batch.virtual_nodes")
      ->required()
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--timeout", flags->timeout_seconds,
                   "How long to wait until those that are started compute (who goes is waited for without a limit)")
      ->type_name("SECONDS")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_flag(
      "--no-wait", flags->no_wait,
      "Do not wait until they are gone, or compute; but who is being started for a larger number is waited "
      "for, and then let go");
  flags->daemon.AddTo(*command);
  command->callback([flags, exit_code] {
    *exit_code = flags->daemon.Run([&](DaemonClient& client) { return RunResize(*flags, client); });
  });
}

}  // namespace eps::cli
