#include "eps_server/bounded_end.h"

#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/thread.h"

namespace eps::server {
namespace {

// The log may lie on the disk that hangs.
void LogForAWhile(absl::Duration patience) {
  absl::StatusOr<std::thread> logging = StartThread([patience] {
    LogWarning("ended_with_work_under_way", {{"seconds", absl::ToDoubleSeconds(patience)},
                                             {"what", "the run had failed, and a disk did not answer"}});
  });
  if (!logging.ok()) return;
  logging->detach();
  absl::SleepFor(absl::Milliseconds(200));
}

}  // namespace

BoundedEnd::BoundedEnd(int exit_code, absl::Duration patience) {
  auto thread = StartThread([this, exit_code, patience] { Loop(exit_code, patience); });
  if (thread.ok()) thread_ = *std::move(thread);  // else it ends when it ends
}

BoundedEnd::~BoundedEnd() {
  {
    MutexLock lock(mu_);
    is_over_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void BoundedEnd::Loop(int exit_code, absl::Duration patience) {
  const MonotonicClock clock = SteadyClock();
  const absl::Duration end = clock() + patience;
  {
    MutexLock lock(mu_);
    while (!is_over_ && clock() < end) changed_.WaitFor(mu_, absl::ToChronoNanoseconds(end - clock()));
    if (is_over_) return;
  }
  LogForAWhile(patience);
  _exit(exit_code);
}

}  // namespace eps::server
