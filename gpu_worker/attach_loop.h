#ifndef EPS_GPU_WORKER_ATTACH_LOOP_H_
#define EPS_GPU_WORKER_ATTACH_LOOP_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/monotonic_clock.h"
#include "gpu_worker/session.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/grpc_control.h"

namespace eps::worker {

struct AttachLoopOptions {
  std::string address;       // the daemon's; for people
  absl::Duration reconnect;  // a daemon that cannot be reached for so long is gone
  // Asks once, and waits for at most `timeout`. Errors: GrpcAttach's
  std::function<absl::StatusOr<AttachAnswer>(absl::Duration timeout)> attach;
  // It has let go of LeaveRequest when it returns: a signal after that is seen by is_to_leave, or ends the process.
  std::function<SessionEnd(Attachment)> run_session;
  // A daemon was lost, or has said that it was stopped, and is looked for from now on.
  std::function<void(bool was_stopped)> on_lost;
  std::function<bool()> is_to_leave;  // whether it was asked to: a lost daemon is not looked for then
  MonotonicClock clock = SteadyClock();
  std::function<void(absl::Duration)> sleep = absl::SleepFor;
};

// Attaches and runs a session; attaches anew, waiting longer and longer between attempts, as long as sessions end because
// their link failed in a way that the same again may help against, or with SessionEnd::daemon_was_stopped. All functions
// are called by this thread.
//
// Where a daemon that says that it starts is heard of, which may take hours, it is waited for as long as it says so.
//
// Errors: the session's; INVALID_ARGUMENT and NOT_FOUND of it are INTERNAL: no user's input · UNAVAILABLE no daemon was
//         reached for `reconnect`, with what was met with first · `attach`'s, if the same again cannot help
absl::Status RunAttachLoop(const AttachLoopOptions& options);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_ATTACH_LOOP_H_
