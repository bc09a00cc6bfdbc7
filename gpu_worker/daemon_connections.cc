#include "gpu_worker/daemon_connections.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "gpu_worker/transport/shared_memory_transport.h"
#include "grpcpp/security/credentials.h"

namespace eps::worker {
namespace {

constexpr absl::Duration kSharedMemoryPatience = absl::Seconds(5), kBetweenTries = absl::Milliseconds(200);

absl::StatusOr<std::unique_ptr<Transport>> OpenSharedMemory(const TransportRequest& request) {
  const Attachment& attachment = *request.attachment;
  if (attachment.shared_memory_socket.empty()) {
    return absl::FailedPreconditionError("the daemon does not offer it");
  }
  return ConnectSharedMemory({.socket_path = attachment.shared_memory_socket,
                              .incarnation = attachment.incarnation,
                              .worker_id = attachment.worker_id,
                              .model = request.model,
                              .wire_dtype = attachment.run.precision.wire,
                              .wire_versions = attachment.run.precision.wire_versions,
                              .pins_weights = request.pins_weights,
                              .push_bytes = request.push_bytes,
                              .on_failure = request.on_failure});
}

// Of who asks for it and has nothing else: the daemon may be out of files, or have many at its door, for a moment.
absl::StatusOr<std::unique_ptr<Transport>> OpenSharedMemoryPatiently(const TransportRequest& request) {
  const absl::Duration deadline = SteadyNow() + kSharedMemoryPatience;
  while (true) {
    absl::StatusOr<std::unique_ptr<Transport>> opened = OpenSharedMemory(request);
    const bool may_pass = absl::IsUnavailable(opened.status()) || absl::IsDeadlineExceeded(opened.status());
    if (!may_pass || SteadyNow() > deadline || !request.is_wanted()) return opened;
    absl::SleepFor(kBetweenTries);
  }
}

// Shared memory or gRPC, as the request says; kAuto: what there is.
absl::StatusOr<NamedTransport> OpenTransport(const std::string& address, const CredentialsSource& credentials,
                                             const TransportRequest& request) {
  if (request.choice != TransportChoice::kGrpc) {
    const bool has_no_other = request.choice == TransportChoice::kSharedMemory;
    absl::StatusOr<std::unique_ptr<Transport>> shared =
        has_no_other ? OpenSharedMemoryPatiently(request) : OpenSharedMemory(request);
    if (shared.ok()) return NamedTransport{.name = "shared_memory", .transport = *std::move(shared)};
    if (has_no_other) {
      return absl::FailedPreconditionError(absl::StrCat("transport: SHARED_MEMORY: ", shared.status().message()));
    }
    LogInfo("shared_memory_not_used", {{"reason", shared.status().ToString()}});
  }
  const std::shared_ptr<grpc::ChannelCredentials> shown = credentials();
  return NamedTransport{
      .name = "grpc",
      .transport = NewGrpcTransport({.channels = {NewDataChannel(address, shown), NewDataChannel(address, shown)},
                                     .incarnation = request.attachment->incarnation,
                                     .worker_id = request.attachment->worker_id,
                                     .model = request.model,
                                     .wire_dtype = request.attachment->run.precision.wire,
                                     .on_failure = request.on_failure})};
}

}  // namespace

DaemonConnections ConnectionsTo(std::string address, CredentialsSource credentials) {
  return {
      .open_control =
          [address, credentials](const Attachment& attachment, ControlCallbacks callbacks) {
            return OpenGrpcControl(address, attachment, std::move(callbacks), credentials());
          },
      .open_transport = [address, credentials](
                            const TransportRequest& request) { return OpenTransport(address, credentials, request); }};
}

}  // namespace eps::worker
