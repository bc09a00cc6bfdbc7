#include "eps_server/checkpoint/patient_thread.h"

#include <sched.h>
#include <time.h>

#include <utility>

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

PatientThread::PatientThread(std::function<bool()> is_awaited, absl::Duration allowance)
    : is_awaited_(std::move(is_awaited)), allowance_(allowance), thread_([this] { Loop(); }) {}

PatientThread::~PatientThread() {
  {
    MutexLock lock(mu_);
    shutdown_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::Status PatientThread::Run(const std::function<absl::Status()>& piece) {
  if (is_awaited()) return piece();
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
