#ifndef EPS_SERVER_TELEMETRY_DAEMON_VIEW_H_
#define EPS_SERVER_TELEMETRY_DAEMON_VIEW_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/long_work.h"
#include "common/base/state_names.h"
#include "common/grpc/keys_state.h"
#include "eps_server/step/run_status.h"
#include "eps_server/store/paged_memory.h"

namespace eps::server {

// What the daemon's page shows: all of one moment, or about.
struct DaemonView {
  std::string phase = run_state::kStarting;  // as StatusReply.state
  LongWork::View start_work;                 // while starting
  RunStatus status;
  // What `eps plan` says that the daemon takes, and workers' inboxes; 0: not known.
  int64_t expected_resident_bytes = 0;
  int64_t checkpoint_every_steps = 0;   // of the RunSpec
  double floor_bytes_per_second = 0;    // of one of the optimizer's threads; 0: not measured
  int64_t checkpoint_buffer_bytes = 0;  // what copies for a checkpoint wait in; taken all the time
  int64_t offloaded_bytes = 0;          // of the state, on a disk
  PagingCounts paging;
  KeysState keys;
  int64_t grpc_pulled_bytes = 0, grpc_pushed_bytes = 0;
  int64_t shared_memory_pulled_bytes = 0, shared_memory_pushed_bytes = 0;
  int64_t waiting_pulls = 0;  // for a version that is not there yet
};

// The same of a run that is over, so much later.
inline DaemonView Aged(DaemonView view, absl::Duration by) {
  view.status.step_age_seconds += absl::ToDoubleSeconds(by);
  view.status.checkpoint_age_seconds += absl::ToDoubleSeconds(by);
  return view;
}

}  // namespace eps::server

#endif  // EPS_SERVER_TELEMETRY_DAEMON_VIEW_H_
