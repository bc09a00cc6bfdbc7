#ifndef EPS_GPU_WORKER_SESSION_H_
#define EPS_GPU_WORKER_SESSION_H_

#include "absl/status/status.h"
#include "gpu_worker/daemon_connections.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/telemetry/worker_page.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/worker_options.h"

namespace eps::worker {

struct SessionEnd {
  absl::Status status;              // OK: the daemon said that the run is done
  bool link_failed = false;         // `status` is the link's first error: attaching anew may help
  bool was_open = false;            // it had planned and had its device, and took orders
  bool daemon_was_stopped = false;  // before its run was done: it may be started again, and is to be looked for
};

// One attachment to a daemon process, from plan to finish: plans the run, makes device, connections and executor, says
// Ready, or offers choices and says it later, and carries orders out until there are no more. It shares nothing with the
// one before. Blocks.
//
// `page` shows what the session does.
// Errors: as RunWorker. RESOURCE_EXHAUSTED of a session that was not open is of the device's memory, saying how much would
//         do. What goes wrong once the control stream is there is reported to the daemon, but for a link that is
//         made anew
SessionEnd RunSession(const WorkerOptions& options, const DeviceBackend& backend, const DaemonConnections& connections,
                      Attachment attachment, WorkerPage& page);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_SESSION_H_
