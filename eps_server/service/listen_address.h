#ifndef EPS_SERVER_SERVICE_LISTEN_ADDRESS_H_
#define EPS_SERVER_SERVICE_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps::server {

struct ListenAddress {
  std::string host;  // an address, without brackets: "127.0.0.1", "::1"
  int port = 0;      // 0: the system chooses
  std::string ToString() const;
};

// HOST:PORT. Only loopback so far: 127.0.0.0/8, [::1], localhost (which is taken as 127.0.0.1).
// Errors: INVALID_ARGUMENT with the text, what is wrong with it, and for other hosts what is missing
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// Errors: UNAVAILABLE naming the address: another process listens there
absl::Status CheckPortIsFree(const ListenAddress& address);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_LISTEN_ADDRESS_H_
