#include "eps_server/service/start_orders.h"

#include "absl/strings/str_cat.h"
#include "eps_server/membership/membership.h"

namespace eps::server {

void StartOrders::NoteStarter() {
  MutexLock lock(mu_);
  starter_seen_at_ = clock_();
}

absl::Status StartOrders::Ask(int workers) {
  if (workers < 1 || workers > static_cast<int>(kMaxWorkers)) {
    return absl::InvalidArgumentError(absl::StrCat("workers: ", workers, ", must be 1 to ", kMaxWorkers));
  }
  MutexLock lock(mu_);
  if (clock_() - starter_seen_at_ > kStarterTime) {
    return absl::FailedPreconditionError(
        "nobody starts workers for this daemon, as eps train does; start gpu_worker --connect where they are to run");
  }
  asked_for_ += workers;
  return absl::OkStatus();
}

int64_t StartOrders::asked_for() const {
  MutexLock lock(mu_);
  return asked_for_;
}

}  // namespace eps::server
