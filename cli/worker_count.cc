#include "cli/worker_count.h"

#include <algorithm>
#include <cstdio>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "cli/run_report.h"
#include "common/base/monotonic_clock.h"
#include "common/base/state_names.h"
#include "common/base/status_macros.h"

namespace eps::cli {

int CountStaying(const proto::StatusReply& status) {
  return static_cast<int>(std::count_if(status.workers().begin(), status.workers().end(), Stays));
}

int CountReady(const proto::StatusReply& status) {
  return static_cast<int>(std::count_if(status.workers().begin(), status.workers().end(),
                                        [](const auto& worker) { return Stays(worker) && IsReady(worker); }));
}

bool MayGrow(const proto::StatusReply& status) {
  return status.state() == run_state::kTraining || status.state() == run_state::kWaitingForWorkers;
}

bool IsEnding(const proto::StatusReply& status) {
  return status.state() == run_state::kFinishing || status.state() == run_state::kFinished ||
         status.state() == run_state::kFailed;
}

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
    if (IsAttached(worker)) found.waiting.push_back(worker.worker_id());
    if (worker.state() == worker_state::kLost) found.lost.push_back(worker.worker_id());
  }
  return found;
}

// The daemon was asked, and is not there to say what became of it: that it is not there is not what the user is to know.
absl::Status WithoutAnswer(const std::vector<int64_t>& workers, absl::string_view why) {
  return absl::AbortedError(absl::StrCat(WorkersText(workers), " had been asked to leave, and whether ",
                                         workers.size() == 1 ? "it" : "they", " did is not known: ", why));
}

// CANCELLED: it ends in this very moment.
bool IsGone(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsCancelled(status); }
bool MayAnswerLater(const absl::Status& status) { return IsGone(status) || absl::IsDeadlineExceeded(status); }

// That the run has come to its end, and where it stands, of a daemon that is gone.
std::string EndedText(const DaemonFlags& daemon) {
  constexpr absl::string_view kHasEnded = "the run has come to its end meanwhile";
  return daemon.HasNoDaemon() ? absl::StrCat(kHasEnded, ": ", NotRunningText(daemon.out)) : std::string(kHasEnded);
}

// Of one that does not answer.
std::string SilenceText(const DaemonFlags& daemon, const absl::Status& status) {
  return daemon.HasNoDaemon() ? NotRunningText(daemon.out) : std::string(status.message());
}

}  // namespace

absl::Status WaitUntilWorkersLeft(const DaemonFlags& daemon, DaemonClient& client, const std::vector<int64_t>& workers,
                                  proto::StatusReply last) {
  const absl::Duration begin = SteadyNow();
  absl::Duration heard = begin;
  std::vector<int64_t> said;
  while (true) {
    absl::SleepFor(kPollInterval);
    const absl::StatusOr<proto::StatusReply> status = client.Status(kCallTimeout);
    if (!status.ok()) {
      // At the end of a run, too, a worker that hung is lost, and not one that left.
      if (IsGone(status.status()) && (IsEnding(last) || daemon.IsOver())) {
        return WithoutAnswer(workers, EndedText(daemon));
      }
      if (MayAnswerLater(status.status()) && SteadyNow() - heard < kPatience) continue;
      return WithoutAnswer(workers, SilenceText(daemon, status.status()));
    }
    heard = SteadyNow();
    if (status->incarnation() != last.incarnation()) {
      return WithoutAnswer(workers, "the daemon was restarted, and knows its workers by other numbers");
    }
    last = *status;
    const Drained found = FindDrained(last, workers);
    if (!found.lost.empty()) {
      return absl::AbortedError(absl::StrCat(WorkersText(found.lost), found.lost.size() == 1 ? " was" : " were",
                                             " lost while leaving; others compute what was to be done there"));
    }
    if (found.waiting.empty()) return absl::OkStatus();
    if (found.waiting != said && SteadyNow() - begin > kQuietTime) {
      std::fprintf(stderr, "waiting for %s, which first finishes what it was given\n",
                   WorkersText(found.waiting).c_str());
      said = found.waiting;
    }
  }
}

absl::Status LetWorkersGo(const DaemonFlags& daemon, DaemonClient& client, const std::vector<int64_t>& workers,
                          bool no_wait, const proto::StatusReply& last) {
  const absl::Status asked = client.Drain(workers, kCallTimeout);
  // A daemon may have let them go, and end before it says so.
  if (MayAnswerLater(asked)) return WithoutAnswer(workers, SilenceText(daemon, asked));
  EPS_RETURN_IF_ERROR(asked);
  if (!no_wait) EPS_RETURN_IF_ERROR(WaitUntilWorkersLeft(daemon, client, workers, last));
  std::printf("%s %s\n", WorkersText(workers).c_str(), no_wait ? "will leave after the step" : "left");
  return absl::OkStatus();
}

absl::Status WaitForStartOrder(const DaemonFlags& daemon, DaemonClient& client, int64_t number, absl::Duration time,
                               const proto::StatusReply& before) {
  const absl::Duration begin = SteadyNow(), end = begin + time;
  absl::Duration heard = begin;
  int ready = CountReady(before), said = -1;
  bool is_ending = false;
  while (SteadyNow() < end) {
    absl::SleepFor(std::min(kPollInterval, end - SteadyNow()));
    const absl::StatusOr<proto::StatusReply> status =
        client.Status(std::clamp(end - SteadyNow(), kPollInterval, kCallTimeout));
    if (!status.ok()) {
      if (IsGone(status.status()) && (is_ending || daemon.IsOver())) return absl::CancelledError(EndedText(daemon));
      if (MayAnswerLater(status.status()) && SteadyNow() - heard < kPatience) continue;
      return absl::AbortedError(absl::StrCat("workers were asked for, and whether they compute is not known: ",
                                             SilenceText(daemon, status.status())));
    }
    heard = SteadyNow();
    is_ending = IsEnding(*status);
    if (status->incarnation() != before.incarnation()) return absl::AbortedError("the daemon was restarted");
    const proto::StartOrder& order = status->start_order();
    if (order.number() > number) return absl::AbortedError("another eps resize has taken the place of this one");
    if (!order.failure().empty()) return absl::AbortedError(absl::StrCat("not all were started: ", order.failure()));
    if (order.is_over()) return absl::OkStatus();
    if (is_ending) return absl::CancelledError(EndedText(daemon));
    ready = CountReady(*status);
    if (ready != said && heard - begin > kQuietTime) {
      std::fprintf(stderr, "waiting for workers: %d of %d are ready\n", ready, order.workers());
      said = ready;
    }
  }
  return absl::DeadlineExceededError(
      absl::StrCat(ready, ready == 1 ? " worker is" : " workers are", " ready after ", absl::FormatDuration(time),
                   "; the others may still come, and asking again for the same number starts none twice"));
}

}  // namespace eps::cli
