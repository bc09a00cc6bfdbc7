#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_CONTROL_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_CONTROL_H_

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/transport/control.h"
#include "grpcpp/security/credentials.h"

namespace eps::worker {

// Introduces this worker to the daemon at `address` (HOST:PORT), which lets it in, or starts yet. Waits for at most
// `timeout`.
//
// Errors: UNAVAILABLE nobody listens there (try again) · FAILED_PRECONDITION the daemon refuses: another protocol
//         version, or its run is over · UNAUTHENTICATED, PERMISSION_DENIED no token, another one, or of another role ·
//         UNIMPLEMENTED a gRPC server is there, but no daemon · INVALID_ARGUMENT it answered what makes no sense
using AttachAnswer = std::variant<Attachment, StartingDaemon>;
absl::StatusOr<AttachAnswer> GrpcAttach(const std::string& address, const Introduction& introduction,
                                        absl::Duration timeout,
                                        std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// What cannot wait until Next is asked again, as a pass is under way. From a thread of the stream's, not under a lock.
struct ControlCallbacks {
  std::function<void(absl::Status)> on_lost;                           // once, when the stream ends
  std::function<void(uint64_t group, absl::Status why)> on_group_end;  // before Next gives the EndGroupOrder; or none
};

// Opens the event stream.
absl::StatusOr<std::unique_ptr<Control>> OpenGrpcControl(
    const std::string& address, const Attachment& attachment, ControlCallbacks callbacks,
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_CONTROL_H_
