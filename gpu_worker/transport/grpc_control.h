#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_CONTROL_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_CONTROL_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/transport/control.h"
#include "grpcpp/security/credentials.h"

namespace eps::worker {

// Introduces this worker to the daemon at `address` (HOST:PORT). Waits for at most `timeout`.
//
// Errors: UNAVAILABLE nobody listens there (try again) · FAILED_PRECONDITION the daemon refuses: another protocol
//         version, or its run is over · UNAUTHENTICATED no token, or another one · INVALID_ARGUMENT it answered what
//         makes no sense
absl::StatusOr<Attachment> GrpcAttach(const std::string& address, const Introduction& introduction,
                                      absl::Duration timeout,
                                      std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// Opens the event stream. `on_lost` is called once, from a thread of the stream's, when it ends: before Next says it,
// so that a pass under way can be cancelled.
absl::StatusOr<std::unique_ptr<Control>> OpenGrpcControl(
    const std::string& address, const Attachment& attachment, std::function<void(absl::Status)> on_lost,
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_CONTROL_H_
