#ifndef EPS_GPU_WORKER_WORKER_H_
#define EPS_GPU_WORKER_WORKER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/worker_options.h"

namespace eps::worker {

// Attaches to the daemon, plans, and does what it says until it says finish. A broken connection ends what is under
// way; the worker then waits, attaches anew and starts clean. Asked to leave (WorkerOptions::leave), it ends well when
// the daemon lets it go, or is lost.
//
// Errors: INVALID_ARGUMENT the device, or an address of its pages that is none or is taken, beginning with the flag's
//         name · UNIMPLEMENTED the device; what is there is no eps_server · UNAVAILABLE no daemon was reached for
//         WorkerOptions::reconnect, with what was met with first · UNAUTHENTICATED, PERMISSION_DENIED no token, another
//         one, or one of a role that may not attach · RESOURCE_EXHAUSTED the run does not fit: the message holds "needs
//         at least N bytes" · FAILED_PRECONDITION the daemon refuses this worker, or its run has failed; shared memory
//         is asked for, and cannot be had · ABORTED the daemon ended this worker · INTERNAL, DATA_LOSS whatever else
//         goes wrong once it is attached · the device's own
absl::Status RunWorker(const WorkerOptions& options);

// Starts the device without an arena and ends it: what it is, or why it does not start.
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED the device · the device's own
absl::StatusOr<DeviceProperties> ProbeDevice(const WorkerOptions& options);

// Measures the device with the layers of `run` (MeasureProfile), saying on stderr what it is at.
absl::StatusOr<Profile> MeasureDevice(const WorkerOptions& options, const RunConfig& run);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_WORKER_H_
