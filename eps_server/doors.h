#ifndef EPS_SERVER_DOORS_H_
#define EPS_SERVER_DOORS_H_

#include "absl/status/statusor.h"
#include "common/base/listen_address.h"
#include "eps_server/daemon.h"
#include "eps_server/service/rpc_server.h"

namespace eps::server {

// How a daemon that listens on `listen` lets peers in: checks that the doors suffice for the address, reads and checks
// their files, and lets this process open as many files as the connections need.
//
// Errors: CheckDoors', NewServerCredentials' · FAILED_PRECONDITION the system allows fewer open files than
//         --max-connections needs
absl::StatusOr<RpcServerOptions> OpenDoors(const ListenAddress& listen, const DaemonOptions& options);

// When the first of the daemon's certificates ends, in seconds since the epoch: those of its own file, and the CA of
// its clients (CaCertificates); 0 without TLS. Errors: LoadKeyPair's, LoadCa's
absl::StatusOr<double> CertificateExpirySeconds(const ServerDoors& doors);

}  // namespace eps::server

#endif  // EPS_SERVER_DOORS_H_
