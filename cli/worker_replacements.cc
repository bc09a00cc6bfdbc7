#include "cli/worker_replacements.h"

#include "common/base/state_names.h"

namespace eps::cli {

void WorkerReplacements::OnCrash() {
  run_goes_on_ = false;
  if (num_wanted_ < num_left_) ++num_wanted_;
}

void WorkerReplacements::OnAnswer(const absl::StatusOr<proto::StatusReply>& status) {
  num_unanswered_ = status.ok() ? 0 : num_unanswered_ + 1;
  if (!status.ok()) {
    if (num_unanswered_ >= kMostUnanswered) num_wanted_ = 0;
    return;
  }
  // A run finishes in its last step, too, before that is committed.
  if (status->state() == run_state::kFinishing && status->step() + 1 < status->steps()) run_is_being_stopped_ = true;
  run_goes_on_ = !run_is_being_stopped_ &&
                 (status->state() == run_state::kTraining || status->state() == run_state::kWaitingForWorkers);
  if (!run_goes_on_) num_wanted_ = 0;
}

bool WorkerReplacements::TakeOne(absl::Duration now) {
  if (num_wanted_ == 0 || !run_goes_on_ || now - taken_at_ < kPause) return false;
  --num_wanted_;
  --num_left_;
  taken_at_ = now;
  return true;
}

}  // namespace eps::cli
