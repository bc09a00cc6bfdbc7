#ifndef EPS_GPU_WORKER_DAEMON_CONNECTIONS_H_
#define EPS_GPU_WORKER_DAEMON_CONNECTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_control.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// The way of weights and gradients that a session wants.
struct TransportRequest {
  const Attachment* attachment = nullptr;  // during the call
  const ModelSpec* model = nullptr;        // outlives the transport
  TransportChoice choice = TransportChoice::kAuto;
  bool pins_weights = false;        // DeviceBackend's
  int64_t push_bytes = 0;           // of contributions under way
  std::function<bool()> is_wanted;  // asked between tries: whether the daemon still stands
  // When it fails by itself: with the first error, from any thread, once.
  std::function<void(absl::Status)> on_failure;
};
struct NamedTransport {
  std::string name;  // "grpc", "shared_memory"
  std::unique_ptr<Transport> transport;
};

// How a session that is attached reaches its daemon; tests have others than ConnectionsTo.
struct DaemonConnections {
  // Errors: OpenGrpcControl's
  std::function<absl::StatusOr<std::unique_ptr<Control>>(const Attachment& attachment, ControlCallbacks callbacks)>
      open_control;
  // Errors: FAILED_PRECONDITION shared memory is asked for, and cannot be had
  std::function<absl::StatusOr<NamedTransport>(const TransportRequest& request)> open_transport;
};

// The daemon at `address` (HOST:PORT).
DaemonConnections ConnectionsTo(std::string address, CredentialsSource credentials);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DAEMON_CONNECTIONS_H_
