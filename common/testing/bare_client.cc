#include "common/testing/bare_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/base/file_util.h"
#include "gtest/gtest.h"

namespace eps {

FileDescriptor ConnectTo(const std::string& address) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << address;
  return fd;
}

void SendText(const FileDescriptor& fd, const std::string& text) {
  send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

std::string ReadUntilClosed(const FileDescriptor& fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t count; (count = recv(fd.get(), bytes, sizeof(bytes), 0)) > 0;) text.append(bytes, count);
  return text;
}

std::string AskHttp(const std::string& address, const std::string& request) {
  const FileDescriptor fd = ConnectTo(address);
  SendText(fd, request);
  return ReadUntilClosed(fd);
}

}  // namespace eps
