#ifndef EPS_COMMON_GRPC_CREDENTIALS_H_
#define EPS_COMMON_GRPC_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace eps {

// What guards a daemon's gRPC address; files, "" for none. docs/security.md says what each door keeps out.
struct ServerDoors {
  std::string certificate_file;  // TLS, with the key beside it
  std::string key_file;
  std::string client_ca_file;  // a peer must show a certificate that this CA signed
  std::string token_file;      // a peer must show this token with every call

  bool tls() const { return !certificate_file.empty(); }
  // Whether a stranger is kept out, and not only listening ears.
  bool knows_peers() const { return !client_ca_file.empty() || !token_file.empty(); }
};

// What a worker or a command shows at those doors; files, "" for none.
struct ClientDoors {
  std::string ca_file;  // TLS: the daemon must show a certificate that this CA signed, for the address that was given
  std::string certificate_file;  // the client's own, with the key beside it
  std::string key_file;
  std::string token_file;
};

// Reads and checks every file. With a token, each call of every service at the address (health and the raw data plane
// too) must carry it, or ends with UNAUTHENTICATED before its service hears of it; whoever shows a wrong one is logged,
// the token never.
//
// Without TLS the address must be loopback: with a token, gRPC itself then refuses any other peer.
// Errors: LoadKeyPair's, LoadCa's, ReadTokenFile's
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> NewServerCredentials(const ServerDoors& doors, absl::Time now);

// For a daemon at `address` (HOST:PORT). A token leaves this process only over TLS, or to an address of this machine.
// Errors: LoadKeyPair's, LoadCa's, ReadTokenFile's · INVALID_ARGUMENT no TLS, and `address` is another machine's
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NewChannelCredentials(const ClientDoors& doors,
                                                                                const std::string& address,
                                                                                absl::Time now);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_CREDENTIALS_H_
