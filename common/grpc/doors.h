#ifndef EPS_COMMON_GRPC_DOORS_H_
#define EPS_COMMON_GRPC_DOORS_H_

#include <string>

namespace eps {

// What guards a daemon's gRPC address; files, "" for none. docs/security.md says what each door keeps out.
struct ServerDoors {
  std::string certificate_file;  // TLS, with the key beside it
  std::string key_file;
  std::string client_ca_file;  // a peer must show a certificate that this CA signed
  std::string token_file;      // a peer must show a token of this file with every call, and may do what its role may

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

}  // namespace eps

#endif  // EPS_COMMON_GRPC_DOORS_H_
