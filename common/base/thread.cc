#include "common/base/thread.h"

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<std::thread> StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("a thread: ", error.what(), " (ulimit -u, pids.max)"));
  }
}

}  // namespace eps
