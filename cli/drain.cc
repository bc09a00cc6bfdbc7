// eps drain: lets workers of a run go, and waits until they are gone.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

constexpr int64_t kMostWorkers = int64_t{1} << 40;  // no daemon counts so far
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
constexpr absl::Duration kQuietTime = absl::Seconds(2);  // what takes longer is said
constexpr absl::Duration kPatience = absl::Seconds(10);  // with a daemon that does not answer

struct DrainFlags {
  DaemonFlags daemon;
  std::vector<int64_t> workers;
  std::vector<std::string> hosts;
  bool no_wait = false;
};

bool IsAttached(const proto::WorkerStatus& worker) { return worker.state() != "lost"; }

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

std::string Named(const std::vector<int64_t>& workers) {
  return absl::StrCat(workers.size() == 1 ? "worker " : "workers ", absl::StrJoin(workers, ", "));
}

// What became of the workers, by a status of the same daemon.
struct Drained {
  std::vector<int64_t> waiting, lost;
};
Drained FindDrained(const proto::StatusReply& status, const std::vector<int64_t>& workers) {
  Drained found;
  for (const proto::WorkerStatus& worker : status.workers()) {
    if (std::find(workers.begin(), workers.end(), worker.worker_id()) == workers.end()) continue;
    (IsAttached(worker) ? found.waiting : found.lost).push_back(worker.worker_id());
  }
  return found;
}

// The daemon was asked, and is not there to say what became of it.
absl::Status WithoutAnswer(const std::vector<int64_t>& workers, const absl::Status& why) {
  return absl::Status(
      why.code(),
      absl::StrCat(Named(workers), " had been asked to leave, and whether they did is not known: ", why.message()));
}

// A daemon that has nothing more to do ends within moments, and lets everybody go before.
bool IsEnding(const proto::StatusReply& status) {
  return status.state() == "finishing" || status.state() == "finished" || status.state() == "failed";
}

absl::Status WaitUntilGone(DaemonClient& client, const std::vector<int64_t>& workers, proto::StatusReply last) {
  const absl::Time begin = absl::Now();
  absl::Time heard = begin;
  std::vector<int64_t> said;
  while (true) {
    absl::SleepFor(kPollInterval);
    const absl::StatusOr<proto::StatusReply> status = client.Status(kCallTimeout);
    if (!status.ok()) {
      // CANCELLED: it ends in this very moment.
      const bool is_gone = absl::IsUnavailable(status.status()) || absl::IsCancelled(status.status());
      if (is_gone && IsEnding(last)) return absl::OkStatus();
      if (!(is_gone || absl::IsDeadlineExceeded(status.status())) || absl::Now() - heard > kPatience)
        return WithoutAnswer(workers, status.status());
      continue;
    }
    heard = absl::Now();
    if (status->incarnation() != last.incarnation()) {
      return WithoutAnswer(workers,
                           absl::AbortedError("the daemon was restarted, and knows its workers by other numbers"));
    }
    last = *status;
    const Drained found = FindDrained(last, workers);
    if (!found.lost.empty()) {
      return absl::AbortedError(absl::StrCat(Named(found.lost), found.lost.size() == 1 ? " was" : " were",
                                             " lost while leaving; others compute what was to be done there"));
    }
    if (found.waiting.empty()) return absl::OkStatus();
    if (found.waiting != said && absl::Now() - begin > kQuietTime) {
      std::fprintf(stderr, "waiting for %s, which first finishes what it was given\n", Named(found.waiting).c_str());
      said = found.waiting;
    }
  }
}

absl::Status RunDrain(const DrainFlags& flags, DaemonClient& client) {
  EPS_ASSIGN_OR_RETURN(const proto::StatusReply status, client.Status(kCallTimeout));
  EPS_ASSIGN_OR_RETURN(const std::vector<int64_t> workers, ChosenWorkers(flags, status));
  EPS_RETURN_IF_ERROR(client.Drain(workers, kCallTimeout));
  if (!flags.no_wait) EPS_RETURN_IF_ERROR(WaitUntilGone(client, workers, status));
  std::printf("%s %s\n", Named(workers).c_str(),
              flags.no_wait ? "will leave after what is being computed there" : "left");
  return absl::OkStatus();
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
