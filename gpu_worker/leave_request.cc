#include "gpu_worker/leave_request.h"

#include <signal.h>

#include <utility>

#include "common/base/exit_code.h"
#include "common/base/log.h"

namespace eps::worker {

void LeaveRequest::OnSignal(int number) {
  MutexLock lock(mu_);
  if (first_ != 0) {
    if (number == SIGHUP || clock_() - first_at_ < kRepeat) return;
    LogWarning("worker_ends_at_once", {{"signal", number}});
    return exit_(kExitFailed);
  }
  first_ = number;
  first_at_ = clock_();
  LogInfo("leave_asked_for", {{"signal", number}, {"at_once", ask_ == nullptr ? 1 : 0}});
  if (ask_ == nullptr) return exit_(kExitSignal + number);
  ask_();
}

int LeaveRequest::signal() const {
  MutexLock lock(mu_);
  return first_;
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
