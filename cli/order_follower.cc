#include "cli/order_follower.h"

#include <string>

#include "cli/worker_count.h"
#include "common/base/ascii_text.h"
#include "common/base/host.h"

namespace eps::cli {

std::set<pid_t> ReadyProcesses(const proto::StatusReply& status) {
  std::set<pid_t> ready;
  for (const proto::WorkerStatus& worker : status.workers()) {
    if (IsReady(worker) && worker.host_name() == HostName()) ready.insert(static_cast<pid_t>(worker.process_id()));
  }
  return ready;
}

bool OrderFollower::WantsOneMore(const proto::StatusReply& status, bool one_is_starting) {
  const proto::StartOrder& order = status.start_order();
  if (order.number() == 0) return false;
  if (order.number() > report_.order()) {
    report_.Clear();
    report_.set_order(order.number());
    had_enough_ = false;
  }
  if (report_.is_over()) return false;
  if (CountReady(status) >= order.workers()) {
    had_enough_ = true;
    report_.set_is_over(!one_is_starting);
    return false;
  }
  if (!MayGrow(status)) {
    GiveUp("the run has come to its end");
    return false;
  }
  return !one_is_starting && CountStaying(status) < order.workers();
}

void OrderFollower::GiveUp(const std::string& why) {
  if (report_.order() == 0 || report_.is_over()) return;
  report_.set_is_over(true);
  if (!had_enough_) report_.set_failure(AsciiText(why));
}

}  // namespace eps::cli
