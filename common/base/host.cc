#include "common/base/host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace eps {

std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

std::string HostName() {
  char name[65] = {};  // Linux allows 64 bytes
  if (gethostname(name, sizeof(name) - 1) != 0) return "";
  std::string printable = name;
  for (char& c : printable) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) c = '?';
  }
  return printable;
}

std::string HostIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (file >> id) return id;
  return HostName();
}

std::string NetworkIdentity() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();  // net:[4026531840]
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    return std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(line.find(':') + 1)));
  }
  return "";
}

bool IsAddressLiteral(const std::string& host) {
  if (host.find('\0') != std::string::npos) return false;  // behind which the system reads nothing
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 || inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

bool IsLoopbackHost(const std::string& host) {
  if (host == "localhost") return true;
  if (!IsAddressLiteral(host)) return false;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace eps
