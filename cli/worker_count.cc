#include "cli/worker_count.h"

#include <algorithm>
#include <cstdio>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace eps::cli {

std::string WorkersText(const std::vector<int64_t>& workers) {
  return absl::StrCat(workers.size() == 1 ? "worker " : "workers ", absl::StrJoin(workers, ", "));
}

namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
constexpr absl::Duration kQuietTime = absl::Seconds(2);  // what takes longer is said
constexpr absl::Duration kPatience = absl::Seconds(10);  // with a daemon that does not answer

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
  return absl::Status(why.code(),
                      absl::StrCat(WorkersText(workers),
                                   " had been asked to leave, and whether they did is not known: ", why.message()));
}

// A daemon that has nothing more to do ends within moments, and lets everybody go before.
bool IsEnding(const proto::StatusReply& status) {
  return status.state() == "finishing" || status.state() == "finished" || status.state() == "failed";
}

}  // namespace

absl::Status WaitUntilWorkersLeft(DaemonClient& client, const std::vector<int64_t>& workers, proto::StatusReply last) {
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
      return absl::AbortedError(absl::StrCat(WorkersText(found.lost), found.lost.size() == 1 ? " was" : " were",
                                             " lost while leaving; others compute what was to be done there"));
    }
    if (found.waiting.empty()) return absl::OkStatus();
    if (found.waiting != said && absl::Now() - begin > kQuietTime) {
      std::fprintf(stderr, "waiting for %s, which first finishes what it was given\n",
                   WorkersText(found.waiting).c_str());
      said = found.waiting;
    }
  }
}

absl::Status WaitUntilWorkersAreReady(DaemonClient& client, int count, absl::Duration time, proto::StatusReply last) {
  const absl::Time begin = absl::Now();
  int64_t said = -1;
  while (true) {
    const int64_t ready = std::count_if(last.workers().begin(), last.workers().end(), [](const auto& worker) {
      return worker.state() == "idle" || worker.state() == "running";
    });
    if (ready >= count) return absl::OkStatus();
    if (IsEnding(last)) return absl::CancelledError("the run has come to its end meanwhile");
    if (absl::Now() - begin > time) {
      return absl::DeadlineExceededError(absl::StrCat(
          ready, " of ", count, " workers are ready after ", absl::FormatDuration(time),
          "; why the others are not stands where they are started, or in the run's folder in logs/gpu_worker-N.log"));
    }
    if (ready != said && absl::Now() - begin > kQuietTime) {
      std::fprintf(stderr, "waiting for workers: %lld of %d are ready\n", static_cast<long long>(ready), count);
      said = ready;
    }
    absl::SleepFor(kPollInterval);
    absl::StatusOr<proto::StatusReply> status = client.Status(kCallTimeout);
    absl::Status error = status.status();
    if (error.ok() && status->incarnation() != last.incarnation())
      error = absl::AbortedError("the daemon was restarted");
    if (!error.ok()) {
      return absl::Status(
          error.code(),
          absl::StrCat("more workers were asked for, and whether they compute is not known: ", error.message()));
    }
    last = *std::move(status);
  }
}

}  // namespace eps::cli
