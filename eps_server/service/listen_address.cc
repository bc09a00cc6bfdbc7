#include "eps_server/service/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"

namespace eps::server {
namespace {

bool IsIpv6(const ListenAddress& address) { return address.host.find(':') != std::string::npos; }

bool IsLoopback(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

std::string ListenAddress::ToString() const {
  return IsIpv6(*this) ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--listen ", text, ": want HOST:PORT with a port up to 65535"));
  }
  address.host = text.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (!IsLoopback(address.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", text,
                     ": only loopback addresses (127.0.0.1, [::1], localhost): TLS and tokens, without which no "
                     "other address is served, come in a later release"));
  }
  return address;
}

absl::Status CheckPortIsFree(const ListenAddress& address) {
  if (address.port == 0) return absl::OkStatus();
  sockaddr_storage storage = {};
  socklen_t length = 0;
  if (IsIpv6(address)) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr);
    length = sizeof(v6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
    length = sizeof(v4);
  }
  const FileDescriptor socket_fd(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.is_open()) return absl::OkStatus();  // the server itself will say what is wrong
  const int on = 1;  // as gRPC does, so that connections of a daemon that just ended do not count
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace eps::server
