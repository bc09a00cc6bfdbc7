#include "cli/signal_queue.h"

#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/signal_watcher.h"

namespace eps::cli {

absl::StatusOr<SignalQueue> SignalQueue::Create(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  LeaveIgnoredHangup(set);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return FileError(errno, "open", "signalfd");
  return SignalQueue(FileDescriptor(fd));
}

std::optional<int> SignalQueue::Wait(absl::Duration timeout) {
  pollfd poll_fd{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  last_ = static_cast<int>(info.ssi_signo);
  return last_;
}

}  // namespace eps::cli
