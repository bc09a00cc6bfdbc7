#include "common/base/listen_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/host.h"

namespace eps {
namespace {

bool IsIpv6(const ListenAddress& address) { return address.host.find(':') != std::string::npos; }

}  // namespace

std::string ListenAddress::ToString() const {
  return IsIpv6(*this) ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool ListenAddress::is_loopback() const { return IsLoopbackHost(host); }

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(text, ": want HOST:PORT with a port up to 65535"));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  if (!IsAddressLiteral(address.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ": want an address, such as 127.0.0.1, 10.0.0.7, [::1] or 0.0.0.0 for all"));
  }
  return address;
}

SocketAddress ToSocketAddress(const ListenAddress& address) {
  SocketAddress result;
  if (IsIpv6(address)) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(result.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr);
    result.num_bytes = sizeof(v6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(result.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
    result.num_bytes = sizeof(v4);
  }
  return result;
}

ListenAddress FromSocketAddress(const SocketAddress& address) {
  const bool is_v4 = address.storage.ss_family == AF_INET;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* const bytes = is_v4 ? static_cast<const void*>(&v4.sin_addr) : &v6.sin6_addr;
  inet_ntop(address.storage.ss_family, bytes, text.data(), text.size());
  absl::string_view host = text.data();
  absl::ConsumePrefix(&host, "::ffff:");
  return {.host = std::string(host), .port = ntohs(is_v4 ? v4.sin_port : v6.sin6_port)};
}

absl::StatusOr<ListenAddress> BoundAddress(int fd) {
  SocketAddress address;
  if (getsockname(fd, address.get(), &address.num_bytes) != 0) {
    return absl::UnavailableError(absl::StrCat("getsockname: ", std::strerror(errno)));
  }
  return FromSocketAddress(address);
}

}  // namespace eps
