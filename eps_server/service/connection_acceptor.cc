#include "eps_server/service/connection_acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host.h"
#include "common/base/listen_address.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"

namespace eps::server {
namespace {

// While the process has no descriptor to accept with, the connection waits in the system's queue.
constexpr int kPauseMillis = 50;

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

}  // namespace

std::string CountedAs(const std::string& host) {
  in6_addr address = {};
  if (IsLoopbackHost(host) || inet_pton(AF_INET6, host.c_str(), &address) != 1) return host;
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), 0);
  std::array<char, INET6_ADDRSTRLEN> network = {};
  inet_ntop(AF_INET6, &address, network.data(), network.size());
  return absl::StrCat(network.data(), "/64");
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(const ListenAddress& address,
                                                                               int max_connections) {
  const auto why = [&address] {
    return absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(errno));
  };
  const SocketAddress where = ToSocketAddress(address);
  FileDescriptor listener(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener.is_open() || !wake.is_open()) return absl::UnavailableError(why());
  // Connections of a daemon that just ended do not count; a second daemon on the port is still an error.
  SetOption(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(listener.get(), where.get(), where.num_bytes) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return absl::FailedPreconditionError(why());  // by the address that was given
  }
  EPS_ASSIGN_OR_RETURN(const ListenAddress bound, BoundAddress(listener.get()));
  return std::unique_ptr<ConnectionAcceptor>(
      new ConnectionAcceptor(std::move(listener), std::move(wake), bound.port, max_connections));
}

ConnectionAcceptor::ConnectionAcceptor(FileDescriptor listener, FileDescriptor wake, int port, int max_connections)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      port_(port),
      max_connections_(static_cast<size_t>(std::max(1, max_connections))) {}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::HandOverTo(std::unique_ptr<Target> target) {
  {
    MutexLock lock(mu_);
    target_.swap(target);
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void ConnectionAcceptor::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void ConnectionAcceptor::Run() {
  while (true) {
    pollfd waited[2] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                        {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    if (poll(waited, 2, -1) < 0) {
      const bool has_no_memory = errno != EINTR;  // for now
      uint64_t stops = 0;
      if (read(wake_.get(), &stops, sizeof(stops)) > 0) return;
      if (has_no_memory) absl::SleepFor(absl::Milliseconds(kPauseMillis));
      continue;
    }
    if (waited[1].revents != 0) return;
    if (waited[0].revents != 0) Accept();
  }
}

void ConnectionAcceptor::Accept() {
  SocketAddress peer;
  FileDescriptor accepted(accept4(listener_.get(), peer.get(), &peer.num_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.is_open()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) poll(nullptr, 0, kPauseMillis);
    return;
  }
  const std::string host = FromSocketAddress(peer).host;
  std::string counted_as = CountedAs(host);
  if (!HasRoom(counted_as)) return Refuse(host);
  struct stat info = {};
  if (fstat(accepted.get(), &info) != 0) return;
  SetOption(accepted.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  const int fd = accepted.Release();
  connections_.push_back({.fd = fd, .inode = info.st_ino, .counted_as = std::move(counted_as)});
  Target::NewConnectionParameters parameters;
  parameters.listener_fd = listener_.get();
  parameters.fd = fd;
  MutexLock lock(mu_);
  target_->HandleNewConnection(&parameters);
}

bool ConnectionAcceptor::HasRoom(const std::string& counted_as) {
  const size_t most = IsLoopbackHost(counted_as) ? max_connections_ : (max_connections_ + 1) / 2;
  const auto has_room = [&] {
    const auto held = std::count_if(connections_.begin(), connections_.end(),
                                    [&](const Connection& each) { return each.counted_as == counted_as; });
    return connections_.size() < max_connections_ && static_cast<size_t>(held) < most;
  };
  if (has_room()) return true;
  ForgetClosed();
  return has_room();
}

void ConnectionAcceptor::ForgetClosed() {
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(),
                                    [](const Connection& each) {
                                      struct stat info = {};
                                      return fstat(each.fd, &info) != 0 || info.st_ino != each.inode;
                                    }),
                     connections_.end());
}

void ConnectionAcceptor::Refuse(const std::string& host) {
  const std::optional<int64_t> refused = refused_.Count(SteadyNow());
  if (!refused.has_value()) return;
  LogWarning("connection_refused", {{"host", host},
                                    {"open", connections_.size()},
                                    {"max_connections", max_connections_},
                                    {"refused_so_far", *refused}});
}

}  // namespace eps::server
