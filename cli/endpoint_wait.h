#ifndef EPS_CLI_ENDPOINT_WAIT_H_
#define EPS_CLI_ENDPOINT_WAIT_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/run_folder/endpoint_file.h"

namespace eps::cli {

// Looks for the endpoints.json of the daemon `process_id` in `out` until it is there: as long as `go_on`, which waits
// for as long as it is told, has no reason to end it. Loading hundreds of GB takes as long as it takes: the pauses grow
// from 1 to 50 ms.
// Errors: those of `go_on`
absl::StatusOr<Endpoint> WaitForEndpoint(const std::string& out, pid_t process_id,
                                         const std::function<absl::Status(absl::Duration pause)>& go_on);

}  // namespace eps::cli

#endif  // EPS_CLI_ENDPOINT_WAIT_H_
