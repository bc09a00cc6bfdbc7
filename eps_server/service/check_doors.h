#ifndef EPS_SERVER_SERVICE_CHECK_DOORS_H_
#define EPS_SERVER_SERVICE_CHECK_DOORS_H_

#include "absl/status/status.h"
#include "common/base/listen_address.h"
#include "common/grpc/doors.h"

namespace eps::server {

// Whether `address` may be listened on behind `doors`: one that other machines reach (all but 127.0.0.0/8 and ::1) only
// with TLS, and with something that tells the cluster's own peers from strangers.
// Errors: INVALID_ARGUMENT naming the address and the flags that are missing
absl::Status CheckDoors(const ListenAddress& address, const ServerDoors& doors);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_CHECK_DOORS_H_
