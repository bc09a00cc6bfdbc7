#ifndef EPS_CLI_ORDER_FOLLOWER_H_
#define EPS_CLI_ORDER_FOLLOWER_H_

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>

#include "proto/control.pb.h"

namespace eps::cli {

// Those of this machine that the daemon knows as able to compute, by their process. Of one that left or was lost it
// says nothing.
std::set<pid_t> ReadyProcesses(const proto::StatusReply& status);

// Follows StatusReply.start_order: workers are started one after the other, each once the one before is ready, so that
// each finds the memory that is left, and a wrong number can be taken back. Decides, and starts nothing.
//
// Threads: one
class OrderFollower {
 public:
  // Whether one more worker is to be started for the newest order. `one_is_starting`: one of those that run here has
  // not become ready yet, for whatever it was started.
  bool WantsOneMore(const proto::StatusReply& status, bool one_is_starting);
  // The newest order is given up: a worker cannot be started for it, or has ended before it was over. `why`: for
  // people, in ASCII from here on; no failure once there were enough.
  void GiveUp(const std::string& why);
  // For Control.FollowOrders.
  const proto::WorkerStarter& report() const { return report_; }

 private:
  proto::WorkerStarter report_;  // of the newest order that was seen
  bool had_enough_ = false;      // ready, for that order
};

}  // namespace eps::cli

#endif  // EPS_CLI_ORDER_FOLLOWER_H_
