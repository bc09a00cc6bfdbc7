#ifndef EPS_SERVER_SERVICE_STATUS_JSON_H_
#define EPS_SERVER_SERVICE_STATUS_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "eps_server/daemon_identity.h"
#include "eps_server/telemetry/daemon_view.h"

namespace eps::server {

// What `eps status --json` says of the same daemon, but for the newest order of `eps resize` and, as the page asks for no
// password, the folders in its texts and the incarnation, in whose place another number is: StatusReply (proto/control.proto)
// as JSON, with its field names, on one line. Numbers of 64 bits are strings.
// Errors: INTERNAL it cannot be written as JSON
absl::StatusOr<std::string> StatusJson(const DaemonIdentity& identity, const DaemonView& view);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_STATUS_JSON_H_
