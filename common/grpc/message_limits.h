#ifndef EPS_COMMON_GRPC_MESSAGE_LIMITS_H_
#define EPS_COMMON_GRPC_MESSAGE_LIMITS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps {

// A message of the control plane that carries no tokens, logits or run: reports, status, small replies.
inline constexpr int64_t kSmallMessageBytes = 256 * 1024;

// One that carries a run: a RunSpec, and the names of its model's classes.
inline constexpr int64_t kRunMessageBytes = int64_t{16} << 20;

// The largest message of the control plane in a run: a step's samples (all of them may go to one
// worker), what it says of them, or the logits of one token.
//
// Errors: INVALID_ARGUMENT naming the batch, when a step's data is more than gRPC can carry in one message
absl::StatusOr<int> MaxControlMessageBytes(const RunConfig& run);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_MESSAGE_LIMITS_H_
