#include "eps_server/service/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/host.h"

namespace eps::server {
namespace {

bool IsIpv6(const ListenAddress& address) { return address.host.find(':') != std::string::npos; }

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
  if (!IsAddressLiteral(address.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", text, ": want an address, such as 127.0.0.1, 10.0.0.7, [::1] or 0.0.0.0 for all"));
  }
  return address;
}

absl::Status CheckDoors(const ListenAddress& address, const ServerDoors& doors) {
  if (IsLoopbackHost(address.host) || (doors.tls() && doors.knows_peers())) return absl::OkStatus();
  const char* const missing = doors.tls() ? "--token-file FILE or --tls-client-ca FILE, or both"
                              : doors.knows_peers()
                                  ? "--tls-cert FILE --tls-key FILE"
                                  : "--tls-cert FILE --tls-key FILE, and --token-file FILE or --tls-client-ca FILE";
  return absl::InvalidArgumentError(absl::StrCat("--listen ", address.ToString(),
                                                 ": other machines reach this address, so it needs TLS and a token or "
                                                 "client certificates: give ",
                                                 missing, " too (`eps keys` makes them)"));
}

SocketAddress ToSocketAddress(const ListenAddress& address) {
  SocketAddress result;
  if (IsIpv6(address)) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(result.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr);
    result.length = sizeof(v6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(result.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
    result.length = sizeof(v4);
  }
  return result;
}

}  // namespace eps::server
