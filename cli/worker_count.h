#ifndef EPS_CLI_WORKER_COUNT_H_
#define EPS_CLI_WORKER_COUNT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/daemon_client.h"
#include "common/base/state_names.h"
#include "proto/control.pb.h"

namespace eps::cli {

// What commands that change how many workers a run has ask of a status, and wait for.

// Not gone: neither lost, nor by itself.
inline bool IsAttached(const proto::WorkerStatus& worker) {
  return worker.state() != worker_state::kLost && worker.state() != worker_state::kLeft;
}
// Attached, and not asked to leave.
inline bool Stays(const proto::WorkerStatus& worker) {
  return IsAttached(worker) && worker.state() != worker_state::kLeaving;
}
// It has said that it can compute; it may leave.
inline bool IsReady(const proto::WorkerStatus& worker) {
  return IsAttached(worker) && worker.state() != worker_state::kAttaching;
}
int CountStaying(const proto::StatusReply& status);
// Of those that stay.
int CountReady(const proto::StatusReply& status);
// Whether the run has something to do for more workers.
bool MayGrow(const proto::StatusReply& status);
// Whether the daemon has nothing more to do, and ends within moments.
bool IsEnding(const proto::StatusReply& status);

// "worker 3", "workers 1, 2".
std::string WorkersText(const std::vector<int64_t>& workers);

// Until the connections of these workers, who were asked to leave, are closed. Says on stderr whom it waits for.
// `last`: the newest that is known of the daemon, which `daemon` found.
// Errors: ABORTED one was lost while leaving, or what became of them is not known: the daemon was restarted, has ended,
//         or does not answer
absl::Status WaitUntilWorkersLeft(const DaemonFlags& daemon, DaemonClient& client, const std::vector<int64_t>& workers,
                                  proto::StatusReply last);

// Asks these workers to leave, waits until they have, unless `no_wait`, and says on stdout what became of them.
// Errors: the daemon's refusal · WaitUntilWorkersLeft's, also of a daemon that ended before it answered
absl::Status LetWorkersGo(const DaemonFlags& daemon, DaemonClient& client, const std::vector<int64_t>& workers,
                          bool no_wait, const proto::StatusReply& last);

// Until the order `number` (StatusReply.start_order) is over. Says on stderr how many workers are ready.
// Errors: ABORTED it was given up, and why; a newer one has taken its place; the daemon was restarted · CANCELLED the
//         run came to its end · DEADLINE_EXCEEDED not in `time` · the daemon's, where it does not answer
absl::Status WaitForStartOrder(const DaemonFlags& daemon, DaemonClient& client, int64_t number, absl::Duration time,
                               const proto::StatusReply& before);

}  // namespace eps::cli

#endif  // EPS_CLI_WORKER_COUNT_H_
