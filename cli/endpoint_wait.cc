#include "cli/endpoint_wait.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace eps::cli {

absl::StatusOr<Endpoint> WaitForEndpoint(const std::string& out, pid_t process_id,
                                         const std::function<absl::Status(absl::Duration pause)>& go_on) {
  constexpr absl::Duration kFirstPause = absl::Milliseconds(1), kLongestPause = absl::Milliseconds(50);
  // By a tenth: nobody waits for more than a tenth longer than the daemon took.
  for (absl::Duration pause = kFirstPause;; pause = std::min(pause * 1.1, kLongestPause)) {
    EPS_RETURN_IF_ERROR(go_on(pause));
    absl::StatusOr<Endpoint> endpoint = ReadEndpointFile(out, EndpointFile::kRunning);
    if (endpoint.ok() && endpoint->process_id == process_id) return endpoint;
  }
}

}  // namespace eps::cli
