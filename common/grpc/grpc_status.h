#ifndef EPS_COMMON_GRPC_GRPC_STATUS_H_
#define EPS_COMMON_GRPC_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace eps {

// The one place where our errors become gRPC's and back. Codes have the same numbers in both; messages longer
// than gRPC's metadata limit allows are cut. An error that says nothing comes back with its code's name as its message:
// who reads it behind what others put before it sees no code.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_GRPC_STATUS_H_
