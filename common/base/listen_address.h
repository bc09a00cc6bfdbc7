#ifndef EPS_COMMON_BASE_LISTEN_ADDRESS_H_
#define EPS_COMMON_BASE_LISTEN_ADDRESS_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Where a server listens: an address and no name, as a name may stand for several, of which one would be left open, and
// whether it is loopback would be up to a name server.
struct ListenAddress {
  std::string host;              // without brackets: "127.0.0.1", "::1"
  int port = 0;                  // 0: the system chooses
  std::string ToString() const;  // "127.0.0.1:80", "[::1]:80"
  bool is_loopback() const;      // 127.0.0.0/8, ::1: only processes of this host reach it
  friend bool operator==(const ListenAddress&, const ListenAddress&) = default;
};

// HOST:PORT; localhost is taken as 127.0.0.1. Errors: INVALID_ARGUMENT with the text and what is wrong with it
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// As the system has it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t num_bytes = sizeof(storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
SocketAddress ToSocketAddress(const ListenAddress& address);
// Of IPv4 or IPv6. An IPv4 peer of an IPv6 listener is one of IPv4.
ListenAddress FromSocketAddress(const SocketAddress& address);
// What a socket is bound to. Errors: the system's
absl::StatusOr<ListenAddress> BoundAddress(int fd);

}  // namespace eps

#endif  // EPS_COMMON_BASE_LISTEN_ADDRESS_H_
