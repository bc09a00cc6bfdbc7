#ifndef EPS_SERVER_SERVICE_CONNECTION_ACCEPTOR_H_
#define EPS_SERVER_SERVICE_CONNECTION_ACCEPTOR_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "common/base/listen_address.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "grpcpp/server_builder.h"

namespace eps::server {

// As whose the connections of `host`, an address, are counted. A machine may have every IPv6 address of a network of 64 bits:
// they count as one, "2001:db8::/64". Workers that share one are half of the connections by default (kConnectionsPerWorker).
std::string CountedAs(const std::string& host);

// Accepts connections for a gRPC server, and no more of them than the limit: gRPC 1.51 has none of its own, and would
// take connections until the process has no descriptors left. One too many is closed at once.
//
// A host may hold at most half of the places, so that one cannot shut out the others; hosts of loopback, which are all
// the same machine, may hold all, whosever processes they are.
//
// Threads: one of its own, from the first HandOverTo to Stop
class ConnectionAcceptor {
 public:
  using Target = grpc::experimental::ExternalConnectionAcceptor;

  // Listens. Connections wait in the system's queue until HandOverTo.
  // Errors: FAILED_PRECONDITION naming the address and why it cannot be had: it is taken, not this host's, or needs rights ·
  //         UNAVAILABLE the system's
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const ListenAddress& address, int max_connections);
  ~ConnectionAcceptor();

  int port() const { return port_; }  // the one that the system chose

  // From now on connections go to `target`, whose server has been started; the one before gets none any more.
  void HandOverTo(std::unique_ptr<Target> target) ABSL_LOCKS_EXCLUDED(mu_);
  // Accepts no more. Those that were handed over are gRPC's.
  void Stop();

  int64_t refused() const { return refused_.so_far(); }

 private:
  // A connection that gRPC owns. It is open as long as its descriptor is still the same socket: gRPC says nothing when
  // it closes one.
  struct Connection {
    int fd = -1;
    ino_t inode = 0;
    std::string counted_as;
  };

  ConnectionAcceptor(FileDescriptor listener, FileDescriptor wake, int port, int max_connections);
  void Run();
  void Accept();
  // Whether one more of those may come in.
  bool HasRoom(const std::string& counted_as);
  void ForgetClosed();
  void Refuse(const std::string& host);

  // Fixed after construction.
  const FileDescriptor listener_;
  const FileDescriptor wake_;  // an eventfd that ends the thread
  const int port_;
  const size_t max_connections_;

  Mutex mu_;  // held while a connection is handed over: a target whose server has been shut down would lose it
  std::unique_ptr<Target> target_ ABSL_GUARDED_BY(mu_);

  std::vector<Connection> connections_;  // of the thread
  LogLimit refused_;

  std::thread thread_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_CONNECTION_ACCEPTOR_H_
