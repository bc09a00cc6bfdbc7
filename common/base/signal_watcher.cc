#include "common/base/signal_watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {

void LeaveIgnoredHangup(sigset_t& set) {
  struct sigaction now = {};
  if (sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
}

absl::StatusOr<std::unique_ptr<SignalWatcher>> SignalWatcher::Create() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  LeaveIgnoredHangup(set);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return FileError(error, "block", "SIGINT, SIGTERM and SIGHUP");
  }
  FileDescriptor signals(signalfd(-1, &set, SFD_CLOEXEC));
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!signals.is_open() || !stop.is_open()) return FileError(errno, "open", "signalfd");
  return std::unique_ptr<SignalWatcher>(new SignalWatcher(std::move(signals), std::move(stop)));
}

void SignalWatcher::Watch(std::function<void(int)> on_signal) {
  thread_ = std::thread([this, call = std::move(on_signal)] { Run(call); });
}

SignalWatcher::~SignalWatcher() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void SignalWatcher::Run(const std::function<void(int)>& on_signal) const {
  while (true) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) on_signal(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace eps
