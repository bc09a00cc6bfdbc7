// eps drain: lets workers of a run go, and waits until they are gone.

#include <cstdint>
#include <memory>
#include <set>
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

constexpr int64_t kMostWorkers = int64_t{1} << 40;  // no daemon counts so far
constexpr absl::Duration kCallTimeout = absl::Seconds(10);

struct DrainFlags {
  DaemonFlags daemon;
  std::vector<int64_t> workers;
  std::vector<std::string> hosts;
  bool no_wait = false;
};

// Those given by number, and all of the hosts given.
absl::StatusOr<std::vector<int64_t>> ChosenWorkers(const DrainFlags& flags, const proto::StatusReply& status) {
  std::set<int64_t> chosen(flags.workers.begin(), flags.workers.end());
  for (const std::string& host : flags.hosts) {
    bool found = false;
    for (const proto::WorkerStatus& worker : status.workers()) {
      if (!IsAttached(worker) || worker.host_name() != host) continue;
      chosen.insert(worker.worker_id());
      found = true;
    }
    if (!found) return absl::NotFoundError(absl::StrCat("--host ", host, ": no worker of that host is attached"));
  }
  return std::vector<int64_t>(chosen.begin(), chosen.end());
}

absl::Status RunDrain(const DrainFlags& flags, DaemonClient& client) {
  EPS_ASSIGN_OR_RETURN(const proto::StatusReply status, client.Status(kCallTimeout));
  EPS_ASSIGN_OR_RETURN(const std::vector<int64_t> workers, ChosenWorkers(flags, status));
  return LetWorkersGo(flags.daemon, client, workers, flags.no_wait, status);
}

}  // namespace

void AddDrain(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "drain",
      "Lets workers go without costing a step: each finishes what it has been given, and ends with exit code 0");
  auto flags = std::make_shared<DrainFlags>();
  command->add_option("WORKER", flags->workers, "Their numbers, as eps status has them")
      ->check(CLI::Range(int64_t{1}, kMostWorkers));
  command->add_option("--host", flags->hosts, "All workers of that host, as eps status names it; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_flag("--no-wait", flags->no_wait, "Do not wait until they are gone");
  flags->daemon.AddTo(*command);
  command->callback([flags, exit_code] {
    if (flags->workers.empty() && flags->hosts.empty()) {
      *exit_code =
          ReportStart(absl::InvalidArgumentError("say whom: WORKER, a number that eps status has, or --host NAME"));
      return;
    }
    *exit_code = flags->daemon.Run([&](DaemonClient& client) { return RunDrain(*flags, client); });
  });
}

}  // namespace eps::cli
