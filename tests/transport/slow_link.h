#ifndef EPS_TESTS_TRANSPORT_SLOW_LINK_H_
#define EPS_TESTS_TRANSPORT_SLOW_LINK_H_

#include <cstdint>
#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/file_util.h"
#include "common/base/mutex.h"

namespace eps {

// A TCP connection to a server on this machine through which what the server says travels at a given rate. What is said
// to it is not held up.
//
// Threads: of its own, two for each connection; the destructor ends all of them
class SlowLink {
 public:
  // server: HOST:PORT of IPv4, as RpcServer::address() is. The rate is each connection's own.
  SlowLink(const std::string& server, int64_t bytes_per_second);
  ~SlowLink();

  // Where to connect instead.
  const std::string& address() const { return address_; }

 private:
  struct Connection {
    FileDescriptor client, server;
    std::thread up, down;
  };

  void AcceptUntilEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Until one of the two ends.
  static void Forward(const Connection& connection, bool is_down, int64_t bytes_per_second);

  // Fixed after construction.
  const int server_port_;
  const int64_t bytes_per_second_;
  FileDescriptor listener_;
  std::string address_;

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mu_);

  std::thread acceptor_;  // last: it uses all of the above
};

}  // namespace eps

#endif  // EPS_TESTS_TRANSPORT_SLOW_LINK_H_
