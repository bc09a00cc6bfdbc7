#ifndef EPS_SERVER_SERVICE_LISTEN_ADDRESS_H_
#define EPS_SERVER_SERVICE_LISTEN_ADDRESS_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/grpc/credentials.h"

namespace eps::server {

struct ListenAddress {
  std::string host;  // an address, without brackets: "127.0.0.1", "::1"
  int port = 0;      // 0: the system chooses
  std::string ToString() const;
};

// HOST:PORT. HOST is an address, or localhost, which is taken as 127.0.0.1; other names may stand for several addresses.
// Errors: INVALID_ARGUMENT with the text and what is wrong with it
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// Whether `address` may be listened on behind `doors`: one that other machines reach (all but 127.0.0.0/8 and ::1) only
// with TLS, and with something that tells the cluster's own peers from strangers.
// Errors: INVALID_ARGUMENT naming the address and the flags that are missing
absl::Status CheckDoors(const ListenAddress& address, const ServerDoors& doors);

// `address` as the system wants it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};
SocketAddress ToSocketAddress(const ListenAddress& address);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_LISTEN_ADDRESS_H_
