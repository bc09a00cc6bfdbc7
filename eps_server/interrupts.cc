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
  const auto meaning = number == SIGHUP ? EndSignals::Meaning::kEndInOrder : signals_.OnSignal(number);
  if (start_ != nullptr) start_->Cancel();
  if (daemon_ == nullptr) return;
  const std::string name = NameOf(number);
  if (meaning == EndSignals::Meaning::kEndInOrder) daemon_->Stop(name);
  if (meaning == EndSignals::Meaning::kEndAtOnce) {
    daemon_->Abort(absl::CancelledError(absl::StrCat("ended at once by a second signal, ", name)));
  }
}

void Interrupts::OnStarted(Daemon* daemon) {
  MutexLock lock(mu_);
  start_ = nullptr;
  daemon_ = daemon;
  if (any_) daemon_->Stop(NameOf(signals_.first() != 0 ? signals_.first() : SIGHUP));
}

int Interrupts::first() {
  MutexLock lock(mu_);
  return signals_.first() != 0 || !any_ ? signals_.first() : SIGHUP;
}

int Interrupts::OnRunOver() {
  MutexLock lock(mu_);
  daemon_ = nullptr;
  return signals_.first();
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
