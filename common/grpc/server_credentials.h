#ifndef EPS_COMMON_GRPC_SERVER_CREDENTIALS_H_
#define EPS_COMMON_GRPC_SERVER_CREDENTIALS_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "common/grpc/server_keys.h"
#include "common/security/token.h"
#include "grpcpp/security/server_credentials.h"

namespace eps {

// The least role that may make a call, by its full name ("/eps.proto.Control/Stop").
using RoleOfMethod = Role (*)(absl::string_view method);

// What a server asks of its peers, by `keys` as they are at each moment: of a handshake the certificates, of a call its
// token. Connections and calls that are there go on when keys change.
//
// With tokens each call of every service at the address (health and the raw data plane too) must carry one, or ends
// before its service hears of it: with UNAUTHENTICATED, or with PERMISSION_DENIED where the token's role is less than
// `role_of` asks for. Either is logged, the token never. Which doors there are stays: that of TLS, or of tokens, is
// there if `keys` had such files at first.
//
// Without TLS the address must be loopback: with a token, gRPC itself then refuses any other peer.
std::shared_ptr<grpc::ServerCredentials> NewServerCredentials(std::shared_ptr<const ServerKeysWatch> keys,
                                                              RoleOfMethod role_of);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_SERVER_CREDENTIALS_H_
