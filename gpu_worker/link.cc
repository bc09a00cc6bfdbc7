#include "gpu_worker/link.h"

#include <chrono>
#include <utility>

namespace eps::worker {

bool MayAttachAnew(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kNotFound:
      return true;
    default:
      return false;
  }
}

void Link::Watch(Transport* transport, Control* control) {
  MutexLock lock(mu_);
  const bool new_transport = std::exchange(transport_, transport) != transport;
  const bool new_control = std::exchange(control_, control) != control;
  if (failure_.ok()) return;
  if (new_transport && transport != nullptr) transport->Cancel(failure_);
  if (new_control && control != nullptr) control->Cancel(failure_);
}

void Link::ControlFailed(absl::Status why) { Fail(std::move(why), /*say=*/false); }

void Link::TransportFailed(absl::Status why) {
  const bool say = !MayAttachAnew(why);
  Fail(std::move(why), say);
}

void Link::Fail(absl::Status why, bool say) {
  MutexLock lock(mu_);  // held to the end, so that Unwatch waits; no Cancel blocks, or calls back
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  failed_.NotifyAll();
  if (transport_ != nullptr) transport_->Cancel(failure_);
  if (control_ == nullptr) return;
  if (say) {
    control_->CancelAndSay(failure_);
  } else {
    control_->Cancel(failure_);
  }
}

absl::Status Link::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

absl::Status Link::AwaitFailure(absl::Duration timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  MutexLock lock(mu_);
  while (failure_.ok() && std::chrono::steady_clock::now() < deadline) {
    failed_.WaitFor(mu_, deadline - std::chrono::steady_clock::now());
  }
  return failure_;
}

}  // namespace eps::worker
