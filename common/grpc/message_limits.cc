#include "common/grpc/message_limits.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/schedule/expert_rows.h"

namespace eps {

absl::StatusOr<int> MaxControlMessageBytes(const RunConfig& run) {
  constexpr int64_t kMaxBytes = std::numeric_limits<int>::max();  // gRPC's own limit is an int
  const int64_t tokens = run.tokens_per_step();
  // A token, its label, its type and its document, 4 bytes each of what the run has; more for each vnode's own fields.
  constexpr int64_t kVnodeBytes = 64;
  const int64_t token_bytes = 8 + (run.model.num_types > 0 ? 4 : 0) + (run.data.has_documents() ? 4 : 0);
  const int64_t most = (kMaxBytes - kSmallMessageBytes - kVnodeBytes * run.batch.virtual_nodes) / token_bytes;
  if (tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat("batch: a step has ", tokens, " tokens, and at most ", most,
                                                   " can be sent to a worker in one message"));
  }
  const int64_t step_bytes = tokens * token_bytes + kVnodeBytes * run.batch.virtual_nodes;
  constexpr int64_t kMostVarintBytes = 5;  // of 32 bits
  const int64_t expert_rows = ToldExpertsOf(run.model, run.batch.virtual_nodes).size();
  const int64_t record_bytes = (kVnodeBytes + expert_rows * kMostVarintBytes) * run.batch.virtual_nodes;
  return static_cast<int>(std::max({step_bytes, record_bytes, run.model.vocab * 4}) + kSmallMessageBytes);
}

}  // namespace eps
