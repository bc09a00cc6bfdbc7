#include "common/grpc/message_limits.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<int> MaxControlMessageBytes(const RunConfig& run) {
  constexpr int64_t kMaxBytes = std::numeric_limits<int>::max();  // gRPC's own limit is an int
  const int64_t tokens = run.tokens_per_step();
  // A token and its label, 4 bytes each; 32 more for each vnode's own fields.
  if (tokens > (kMaxBytes - kSmallMessageBytes) / 8 - 4 * int64_t{run.batch.virtual_nodes}) {
    return absl::InvalidArgumentError(absl::StrCat("batch: a step has ", tokens, " tokens, and at most ", kMaxBytes / 8,
                                                   " can be sent to a worker in one message"));
  }
  const int64_t step_bytes = tokens * 8 + int64_t{run.batch.virtual_nodes} * 32;
  return static_cast<int>(std::max(step_bytes, run.model.vocab * 4) + kSmallMessageBytes);
}

}  // namespace eps
