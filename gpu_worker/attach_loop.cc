#include "gpu_worker/attach_loop.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "gpu_worker/link.h"

namespace eps::worker {
namespace {

constexpr absl::Duration kFirstWait = absl::Milliseconds(100);
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kSayAgain = absl::Seconds(30);

// Whoever answered at the address is not the daemon that --tls-ca stands for, and will not become it. gRPC gives such a
// handshake no code of its own.
bool IsAnotherDaemon(const absl::Status& status) {
  return absl::StrContains(status.message(), "certificate verify failed") ||
         absl::StrContains(status.message(), "is not in peer certificate");
}

// Other keys than the daemon's are shown, or expected.
bool IsOfKeys(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) || IsAnotherDaemon(status);
}

// One search for a daemon, from when it is away: what is said of it, and for how long it goes on.
class Search {
 public:
  // `first_error`: what it is looked for because of; OK: for the first time.
  Search(const AttachLoopOptions& options, absl::Status first_error)
      : options_(options),
        was_attached_(!first_error.ok()),
        first_error_(std::move(first_error)),
        away_since_(options.clock()) {}

  absl::StatusOr<Attachment> Run() {
    for (absl::Duration wait = kFirstWait;; wait = std::min(wait * 2, kLongestWait)) {
      absl::StatusOr<AttachAnswer> answer = options_.attach(std::max(TimeLeft(), absl::Seconds(1)));
      if (answer.ok()) {
        if (auto* attachment = std::get_if<Attachment>(&*answer)) return std::move(*attachment);
        OnStarting(std::get<StartingDaemon>(*answer));
        options_.sleep(wait);
        continue;
      }
      // Whoever was let in before may be about to get the keys that the daemon came back with.
      const bool may_get_keys = was_attached_ && IsOfKeys(answer.status());
      if (may_get_keys) {
        if (!IsOfKeys(first_error_)) says_next_ = options_.clock();  // whoever exchanges keys looks for this
        first_error_ = answer.status();
      } else if (!MayAttachAnew(answer.status()) || IsAnotherDaemon(answer.status())) {
        return NotOfTheDevice(answer.status());
      }
      if (std::exchange(is_starting_, false)) {
        away_since_ = options_.clock();
        says_next_ = away_since_;
        wait = kFirstWait;
      }
      OnError(answer.status());
      if (TimeLeft() <= absl::ZeroDuration()) return NotReached();
      options_.sleep(std::min(wait, TimeLeft()));
    }
  }

 private:
  absl::Duration TimeLeft() const { return away_since_ + options_.reconnect - options_.clock(); }

  void OnStarting(const StartingDaemon& starting) {
    if (!std::exchange(is_starting_, true)) says_next_ = -absl::InfiniteDuration();
    first_error_ = absl::OkStatus();
    if (IsToSay()) LogInfo("worker_waits_for_daemon", {{"address", options_.address}, {"starting", starting.what}});
  }

  void OnError(const absl::Status& error) {
    if (first_error_.ok()) first_error_ = error;
    if (!IsToSay()) return;
    LogInfo("worker_waits_for_daemon", {{"address", options_.address},
                                        {"error", error.ToString()},
                                        {"seconds_left", absl::ToInt64Seconds(TimeLeft())}});
  }

  bool IsToSay() {
    const absl::Duration now = options_.clock();
    if (now < says_next_) return false;
    says_next_ = now + kSayAgain;
    return true;
  }

  absl::Status NotReached() const {
    const bool is_kept_out = IsOfKeys(first_error_);
    return absl::Status(
        is_kept_out ? first_error_.code() : absl::StatusCode::kUnavailable,
        absl::StrCat(is_kept_out ? "no daemon let it in at " : "no daemon was reached at ", options_.address, " for ",
                     absl::ToInt64Seconds(options_.clock() - away_since_), " s: ", first_error_.message()));
  }

  const AttachLoopOptions& options_;
  const bool was_attached_;
  absl::Status first_error_;
  absl::Duration away_since_;
  absl::Duration says_next_ = -absl::InfiniteDuration();
  bool is_starting_ = false;
};

// What goes wrong once the worker has joined is not its user's input; in the middle of a run it does not say that its
// device is too small for it, either.
absl::Status OfSession(const SessionEnd& end) {
  const absl::Status& status = end.status;
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status)) return absl::InternalError(status.message());
  return end.was_open || end.link_failed ? NotOfTheDevice(status) : status;
}

}  // namespace

absl::Status RunAttachLoop(const AttachLoopOptions& options) {
  absl::Status lost;                // why the connection before was lost
  uint64_t failed_incarnation = 0;  // of the daemon that the last session could not be opened with; 0: it could
  while (true) {
    EPS_ASSIGN_OR_RETURN(Attachment attachment, Search(options, lost).Run());
    const uint64_t incarnation = attachment.incarnation;
    const SessionEnd end = options.run_session(std::move(attachment));
    if (end.daemon_was_stopped) {
      lost = end.status;
      failed_incarnation = 0;
      if (options.is_to_leave()) return absl::OkStatus();
      options.on_lost(/*was_stopped=*/true);
      LogInfo("worker_waits_for_daemon", {{"address", options.address}, {"error", lost.message()}});
      options.sleep(kFirstWait);
      continue;
    }
    if (!end.link_failed || !MayAttachAnew(end.status)) return OfSession(end);
    // The daemon may have gone right after it let us in. One that is still there would refuse us again.
    if (!end.was_open && incarnation == failed_incarnation) return OfSession(end);
    failed_incarnation = end.was_open ? 0 : incarnation;
    lost = end.status;
    if (options.is_to_leave()) {  // its part of the step is computed anew by others
      LogWarning("worker_lost_daemon", {{"error", lost.ToString()}, {"next", "ends, as it was asked to leave"}});
      return absl::OkStatus();
    }
    options.on_lost(/*was_stopped=*/false);
    LogWarning("worker_lost_daemon", {{"error", lost.ToString()}});
    options.sleep(kFirstWait);  // a daemon that lets us in and ends us at once is not asked without a pause
  }
}

}  // namespace eps::worker
