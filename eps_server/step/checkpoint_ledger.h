#ifndef EPS_SERVER_STEP_CHECKPOINT_LEDGER_H_
#define EPS_SERVER_STEP_CHECKPOINT_LEDGER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "eps_server/step/run_status.h"

namespace eps::server {

// Of a run's checkpoints: which are due, under way and on disk, and who asked for one. Writes none.
//
// Threads: none of its own; the owner guards it. Time is passed in.
class CheckpointLedger {
 public:
  // Who asked gets the path, or why there is none.
  using Answer = std::function<void(absl::StatusOr<std::string>)>;

  // Of a run that begins at version `first`, which is on disk at `newest_path` unless it is 0.
  CheckpointLedger(int64_t every_steps, Version first, std::string newest_path, absl::Duration now);

  // Somebody wants one of the next version that there is.
  void Request(Answer answer) { requests_.push_back(std::move(answer)); }
  bool IsRequested() const { return !requests_.empty(); }
  // By the run's interval, or because somebody wants it.
  bool IsDue(Version version) const;

  // `version` is to be written, and answers the requests so far.
  void Start(Version version);
  // The writing of `version`, which is started, begins.
  void Begin(Version version, absl::Duration now) { begun_[version] = now; }
  // The requests so far wait for `version`, which is started and not written.
  void Await(Version version);
  bool IsStarted(Version version) const { return started_ == version; }  // to be written, or written
  // Somebody waits for `being_written`, or for the one after it.
  bool IsAwaited(Version being_written) const;
  bool IsWritten(Version version) const { return written_ == version; }
  bool IsAnyBeingWritten() const { return !begun_.empty(); }
  // Three quarters of the steps to the next checkpoint are done, which `being_written` must not hold up.
  bool IsLate(Version being_written, Version committed) const;

  // `version` is on disk at `path`, or why it is not: it may be started again. Returns who waited for it.
  std::vector<Answer> OnWritten(Version version, const absl::StatusOr<std::string>& path, int64_t num_bytes,
                                absl::Duration now);

  // Who asked and waits for no version yet.
  std::vector<Answer> TakeRequests();
  // Everybody who waits for anything.
  std::vector<Answer> TakeAll();

  const std::string& newest_path() const { return newest_path_; }  // on disk; "" if none
  // Sets what RunStatus says of checkpoints.
  void Fill(RunStatus& status, absl::Duration now) const;

 private:
  int64_t every_steps_;
  std::vector<Answer> requests_;
  std::map<Version, std::vector<Answer>> awaited_;
  std::map<Version, absl::Duration> begun_;  // being written, or next in turn
  Version started_, written_;
  std::string newest_path_;
  absl::Duration newest_at_;  // when it was written; the run's start if before that
  int64_t num_written_ = 0, num_failed_ = 0;
  std::string error_;  // of the newest write
  double write_seconds_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_CHECKPOINT_LEDGER_H_
