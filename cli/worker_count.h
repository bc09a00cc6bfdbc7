#ifndef EPS_CLI_WORKER_COUNT_H_
#define EPS_CLI_WORKER_COUNT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/daemon_client.h"
#include "proto/control.pb.h"

namespace eps::cli {

// Waits of commands that change how many workers a run has.

// Not lost.
inline bool IsAttached(const proto::WorkerStatus& worker) { return worker.state() != "lost"; }

// "worker 3", "workers 1, 2".
std::string WorkersText(const std::vector<int64_t>& workers);

// Until the connections of these workers, who were asked to leave, are closed. Says on stderr whom it waits for. `last`: the
// newest that is known of the daemon.
// Errors: ABORTED one was lost while leaving, or the daemon was restarted · the daemon's, where it does not answer
absl::Status WaitUntilWorkersLeft(DaemonClient& client, const std::vector<int64_t>& workers, proto::StatusReply last);

// Until `count` workers are ready and stay. Says on stderr how many are.
// Errors: DEADLINE_EXCEEDED not in `time` · CANCELLED the run ends · ABORTED the daemon was restarted · the daemon's
absl::Status WaitUntilWorkersAreReady(DaemonClient& client, int count, absl::Duration time, proto::StatusReply last);

}  // namespace eps::cli

#endif  // EPS_CLI_WORKER_COUNT_H_
