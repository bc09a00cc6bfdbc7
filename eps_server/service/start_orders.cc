#include "eps_server/service/start_orders.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/ascii_text.h"

namespace eps::server {

std::string StartOrders::NoteStarter(int64_t number, bool is_over, const std::string& failure) {
  constexpr size_t kMaxFailureBytes = 1024;
  std::string text = AsciiText(failure.substr(0, kMaxFailureBytes));
  MutexLock lock(mu_);
  starter_seen_at_ = clock_();
  if (number != newest_.number || number == 0) return "";
  const bool is_new = newest_.failure.empty();
  newest_.is_over = is_over;
  newest_.failure = std::move(text);
  return is_new ? newest_.failure : "";
}

absl::StatusOr<int64_t> StartOrders::Ask(int workers) {
  if (workers < 1 || workers > most_workers_) {
    return absl::InvalidArgumentError(absl::StrCat("workers: ", workers, ", must be 1 to ", most_workers_,
                                                   ", as batch.virtual_nodes is: others would have nothing to do"));
  }
  MutexLock lock(mu_);
  if (clock_() - starter_seen_at_ > kStarterTime) {
    return absl::FailedPreconditionError(
        "nobody starts workers for this daemon, as eps train does; start gpu_worker --connect where they are to run");
  }
  newest_ = {.number = newest_.number + 1, .workers = workers};
  return newest_.number;
}

StartOrders::Order StartOrders::newest() const {
  MutexLock lock(mu_);
  Order newest = newest_;
  if (newest.number > 0 && !newest.is_over && clock_() - starter_seen_at_ > kStarterTime) {
    newest.is_over = true;
    newest.failure = "nothing is heard of whoever starts workers";
  }
  return newest;
}

}  // namespace eps::server
