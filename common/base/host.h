#ifndef EPS_COMMON_BASE_HOST_H_
#define EPS_COMMON_BASE_HOST_H_

#include <string>

namespace eps {

// The host of HOST:PORT, without brackets: "127.0.0.1", "::1", "node7".
std::string HostOf(const std::string& address);

// What this machine calls itself, at most 64 bytes, each of them printable ASCII; "" if it does not.
std::string HostName();

// The same for every process and container of a running machine, and for no other; the name of the machine where Linux does
// not say.
std::string HostIdentity();

// The same for processes that reach each other by loopback: of one network namespace. "" where Linux does not say.
std::string NetworkIdentity();

// What Linux calls the processor: "AMD EPYC 7543 32-Core Processor"; "" where it has no name for it, as on arm64.
std::string ProcessorName();

// An IPv4 or IPv6 address, not a name.
bool IsAddressLiteral(const std::string& host);

// 127.0.0.0/8, ::1, or "localhost". Any other name is not resolved, and is none.
bool IsLoopbackHost(const std::string& host);

}  // namespace eps

#endif  // EPS_COMMON_BASE_HOST_H_
