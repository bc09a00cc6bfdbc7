#include "tests/transport/slow_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool WriteAll(int socket, const char* bytes, ssize_t num_bytes) {
  while (num_bytes > 0) {
    const ssize_t written = send(socket, bytes, static_cast<size_t>(num_bytes), MSG_NOSIGNAL);
    if (written <= 0) return false;
    bytes += written;
    num_bytes -= written;
  }
  return true;
}

}  // namespace

SlowLink::SlowLink(const std::string& server, int64_t bytes_per_second)
    : server_port_(std::stoi(server.substr(server.rfind(':') + 1))), bytes_per_second_(bytes_per_second) {
  listener_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t address_bytes = sizeof(address);
  EPS_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), address_bytes) == 0);
  EPS_CHECK(listen(listener_.get(), 16) == 0);
  EPS_CHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &address_bytes) == 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  acceptor_ = std::thread([this] { AcceptUntilEnd(); });
}

SlowLink::~SlowLink() {
  {
    MutexLock lock(mu_);
    ended_ = true;
  }
  shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  MutexLock lock(mu_);
  for (Connection& connection : connections_) {
    shutdown(connection.client.get(), SHUT_RDWR);
    shutdown(connection.server.get(), SHUT_RDWR);
    connection.up.join();
    connection.down.join();
  }
}

void SlowLink::AcceptUntilEnd() {
  while (true) {
    FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.is_open()) return;
    FileDescriptor server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(server_port_);
    if (connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) continue;
    MutexLock lock(mu_);
    if (ended_) return;
    Connection& connection = connections_.emplace_back();
    connection.client = std::move(client);
    connection.server = std::move(server);
    connection.up = std::thread([&connection] { Forward(connection, false, 0); });
    connection.down = std::thread([&connection, this] { Forward(connection, true, bytes_per_second_); });
  }
}

void SlowLink::Forward(const Connection& connection, bool is_down, int64_t bytes_per_second) {
  const int from = is_down ? connection.server.get() : connection.client.get();
  const int to = is_down ? connection.client.get() : connection.server.get();
  std::vector<char> bytes(16 << 10);
  while (true) {
    const ssize_t received = recv(from, bytes.data(), bytes.size(), 0);
    if (received <= 0) break;
    if (is_down) {
      std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(received) / bytes_per_second));
    }
    if (!WriteAll(to, bytes.data(), received)) break;
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace eps
