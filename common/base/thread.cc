#include "common/base/thread.h"

#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace eps {

absl::StatusOr<std::thread> StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("a thread: ", error.what(), " (ulimit -u, pids.max)"));
  }
}

absl::Status CheckThreadRoom(int threads) {
  absl::Notification tried;
  std::vector<std::thread> started;
  absl::Status refused;
  for (int i = 0; i < threads && refused.ok(); ++i) {
    absl::StatusOr<std::thread> thread = StartThread([&tried] { tried.WaitForNotification(); });
    if (thread.ok()) {
      started.push_back(*std::move(thread));
    } else {
      refused = absl::UnavailableError(
          absl::StrCat("needs ", threads, " threads, and may start ", started.size(),
                       ": raise the limit of this user's processes (ulimit -u), or of this container's or service's "
                       "(pids.max in its cgroup: docker run --pids-limit, TasksMax= of systemd)"));
    }
  }
  tried.Notify();
  for (std::thread& thread : started) thread.join();
  return refused;
}

}  // namespace eps
