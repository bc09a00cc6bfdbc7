#ifndef EPS_COMMON_TESTING_BARE_CLIENT_H_
#define EPS_COMMON_TESTING_BARE_CLIENT_H_

#include <string>

#include "common/base/file_util.h"

// Bare sockets for tests of servers: bytes are sent as they are, and read until the server hangs up.
namespace eps {

// A connection to `address`, "127.0.0.1:PORT". A failed expectation when there is none.
FileDescriptor ConnectTo(const std::string& address);

// The server may have hung up: that is no error here, and is seen in what comes back.
void SendText(const FileDescriptor& fd, const std::string& text);

std::string ReadUntilClosed(const FileDescriptor& fd);

// What the server at `address` answers to the bytes of `request`, headers and body.
std::string AskHttp(const std::string& address, const std::string& request);

}  // namespace eps

#endif  // EPS_COMMON_TESTING_BARE_CLIENT_H_
