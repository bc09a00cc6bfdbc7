#include "gpu_worker/leave_request.h"

#include <utility>

#include "common/base/exit_code.h"
#include "common/base/log.h"

namespace eps::worker {

void LeaveRequest::OnSignal(int number) {
  MutexLock lock(mu_);
  const EndSignals::Meaning meaning = signals_.OnSignal(number);
  if (meaning == EndSignals::Meaning::kNothingNew) return;
  if (meaning == EndSignals::Meaning::kEndAtOnce) {
    LogWarning("worker_ends_at_once", {{"signal", number}});
    return exit_(kExitFailed);
  }
  LogInfo("leave_asked_for", {{"signal", number}, {"at_once", ask_ == nullptr ? 1 : 0}});
  if (ask_ == nullptr) return exit_(kExitSignal + number);
  ask_();
}

int LeaveRequest::signal() const {
  MutexLock lock(mu_);
  return signals_.first();
}

void LeaveRequest::Attend(std::function<void()> ask) {
  MutexLock lock(mu_);
  ask_ = std::move(ask);
}

void LeaveRequest::Unattend() {
  MutexLock lock(mu_);
  ask_ = nullptr;
}

}  // namespace eps::worker
