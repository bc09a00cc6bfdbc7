#include "eps_server/interrupts.h"

#include <signal.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps::server {

namespace {

std::string NameOf(int number) { return number == SIGHUP ? "SIGHUP" : number == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace

void Interrupts::OnSignal(int number) {
  MutexLock lock(mu_);
  any_ = true;
  came_.NotifyAll();
  const bool is_second = first_ != 0;
  if (number != SIGHUP && !is_second) {
    first_ = number;
    first_at_ = clock_();
  }
  if (start_ != nullptr) start_->Cancel();
  if (daemon_ == nullptr) return;
  if (number != SIGHUP && is_second && clock_() - first_at_ < kRepeat) return;
  const std::string name = NameOf(number);
  if (number != SIGHUP && is_second) {
    daemon_->Abort(absl::CancelledError(absl::StrCat("ended at once by a second signal, ", name)));
  } else {
    daemon_->Stop(name);
  }
}

void Interrupts::OnStarted(Daemon* daemon) {
  MutexLock lock(mu_);
  start_ = nullptr;
  daemon_ = daemon;
  if (any_) daemon_->Stop(NameOf(first_ != 0 ? first_ : SIGHUP));
}

int Interrupts::first() {
  MutexLock lock(mu_);
  return first_ != 0 || !any_ ? first_ : SIGHUP;
}

int Interrupts::OnRunOver() {
  MutexLock lock(mu_);
  daemon_ = nullptr;
  return first_;
}

void Interrupts::Linger(absl::Duration linger) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(linger);
  MutexLock lock(mu_);
  while (!any_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return;
    came_.WaitFor(mu_, left);
  }
}

}  // namespace eps::server
