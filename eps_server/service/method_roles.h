#ifndef EPS_SERVER_SERVICE_METHOD_ROLES_H_
#define EPS_SERVER_SERVICE_METHOD_ROLES_H_

#include "absl/strings/string_view.h"
#include "common/security/token.h"

namespace eps::server {

// The least role that may make the call `method` ("/eps.proto.Control/Stop") of a daemon. A viewer sees how the run is;
// a worker computes for it, and so sees all of the model and can falsify it; an operator decides what becomes of it.
// What nobody has placed is an operator's.
Role RoleOfMethod(absl::string_view method);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_METHOD_ROLES_H_
