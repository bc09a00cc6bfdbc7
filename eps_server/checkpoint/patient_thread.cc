#include "eps_server/checkpoint/patient_thread.h"

#include <sys/resource.h>

#include <utility>

namespace eps::server {
namespace {

// Linux weighs a thread of nice 14 with 45 where others have 1024: 45 / (45 + 1024) = 4.2% of a core that somebody else
// wants whole, so that a machine of a single core keeps within 5%. Lower would be slower and gain nothing.
constexpr int kNice = 14;

// Of the calling thread alone, as Linux has it. What fails costs priority and nothing else.
void LowerPriority() { setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice); }

}  // namespace

PatientThread::PatientThread(std::function<bool()> is_awaited)
    : is_awaited_(std::move(is_awaited)), thread_([this] { Loop(); }) {}

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
