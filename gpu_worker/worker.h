#ifndef EPS_GPU_WORKER_WORKER_H_
#define EPS_GPU_WORKER_WORKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/device.h"
#include "grpcpp/security/credentials.h"

namespace eps::worker {

struct WorkerOptions {
  std::string address;  // HOST:PORT of the daemon
  std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr;  // what it is shown; null: nothing, in plaintext
  std::string device = "cpu";
  int64_t device_memory_bytes = 0;  // the arena's cap; 0: what the plan can use, at most half of the free memory
  int threads = 1;                  // that compute
  std::optional<TransportChoice> transport = std::nullopt;  // in place of the run's own
  std::string metrics_listen = "127.0.0.1:0";    // the HTTP page
  bool metrics_any_address = false;              // of which others than this host may be reached
  absl::Duration reconnect = absl::Seconds(30);  // a daemon that cannot be reached for so long is gone
};

// Attaches to the daemon, plans, and does what it says until it says finish. A broken connection ends what is under
// way; the worker then waits, attaches anew and starts clean.
//
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED the device · RESOURCE_EXHAUSTED the run does not fit: the message holds "needs
//         at least N bytes" · FAILED_PRECONDITION shared memory is asked for, and the daemon's cannot be reached ·
//         UNAVAILABLE the daemon could not be reached; the first error stands · ABORTED the daemon
//         ended the run as failed · the device's own
absl::Status RunWorker(const WorkerOptions& options);

// Starts the device without an arena and ends it: what it is, or why it does not start.
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED the device · the device's own
absl::StatusOr<DeviceProperties> ProbeDevice(const WorkerOptions& options);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_WORKER_H_
