#include "eps_server/checkpoint/patient_thread.h"

#include <sched.h>
#include <time.h>

#include <utility>

#include "absl/status/statusor.h"
#include "common/base/thread.h"

namespace eps::server {
namespace {

// Of the calling thread alone, as Linux has it. SCHED_IDLE and not a nice value: a thread that computes in small pieces,
// waiting for others in between, takes its core back at once when it wakes up, where a nice thread may first finish its
// slice of some milliseconds (0.2 s of a step of 1 s on 2 cores, 2026-11-21). Where others want every core all the time,
// it gets 3 / (3 + 1024) = 0.3% of one. What fails costs priority and nothing else.
void LowerPriority() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);
}

// What the calling thread has had of a core.
absl::Duration CoreTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

PatientThread::PatientThread(Options options) : options_(std::move(options)), allowance_(options_.allowance) {
  if (absl::StatusOr<std::thread> thread = StartThread([this] { Loop(); }); thread.ok()) thread_ = *std::move(thread);
}

PatientThread::~PatientThread() {
  {
    MutexLock lock(mu_);
    shutdown_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status PatientThread::Run(const std::function<absl::Status()>& piece) {
  if (options_.is_cancelled != nullptr && options_.is_cancelled()) return absl::CancelledError("no longer wanted");
  if (is_awaited() || !thread_.joinable()) return piece();
  if (allowance_ > absl::ZeroDuration()) {
    const absl::Duration begin = CoreTime();
    absl::Status result = piece();
    allowance_ -= CoreTime() - begin;
    return result;
  }
  MutexLock lock(mu_);
  piece_ = &piece;
  changed_.NotifyAll();
  while (piece_ != nullptr) changed_.Wait(mu_);
  return std::exchange(result_, absl::OkStatus());
}

void PatientThread::Loop() {
  LowerPriority();
  while (true) {
    const std::function<absl::Status()>* piece = nullptr;
    {
      MutexLock lock(mu_);
      while (piece_ == nullptr && !shutdown_) changed_.Wait(mu_);
      if (shutdown_) return;
      piece = piece_;
    }
    absl::Status result = (*piece)();
    MutexLock lock(mu_);
    result_ = std::move(result);
    piece_ = nullptr;
    changed_.NotifyAll();
  }
}

}  // namespace eps::server
