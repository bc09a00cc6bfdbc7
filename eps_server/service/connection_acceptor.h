#ifndef EPS_SERVER_SERVICE_CONNECTION_ACCEPTOR_H_
#define EPS_SERVER_SERVICE_CONNECTION_ACCEPTOR_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "common/base/listen_address.h"
#include "common/base/mutex.h"
#include "grpcpp/server_builder.h"

namespace eps::server {

// Accepts connections for a gRPC server, and no more of them than the limit: gRPC 1.51 has none of its own, and would
// take connections until the process has no descriptors left. One too many is closed at once.
//
// A host may hold at most half of the places, so that one cannot shut out the others; hosts of loopback, which are all
// the same machine, may hold all.
//
// Threads: one of its own, from the first HandOverTo to Stop
class ConnectionAcceptor {
 public:
  using Target = grpc::experimental::ExternalConnectionAcceptor;

  // Listens. Connections wait in the system's queue until HandOverTo.
  // Errors: UNAVAILABLE naming the address and the system's reason
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const ListenAddress& address, int max_connections);
  ~ConnectionAcceptor();

  int port() const { return port_; }  // the one that the system chose

  // From now on connections go to `target`, whose server has been started; the one before gets none any more.
  void HandOverTo(std::unique_ptr<Target> target) ABSL_LOCKS_EXCLUDED(mu_);
  // Accepts no more. Those that were handed over are gRPC's.
  void Stop();

  int64_t refused() const { return refused_; }  // so far

 private:
  // A connection that gRPC owns. It is open as long as its descriptor is still the same socket: gRPC says nothing when
  // it closes one.
  struct Connection {
    int fd = -1;
    ino_t inode = 0;
    std::string host;
  };

  ConnectionAcceptor(FileDescriptor listener, FileDescriptor wake, int port, int max_connections);
  void Run();
  void Accept();
  // Whether one more of `host` may come in.
  bool HasRoom(const std::string& host);
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
  int64_t last_logged_ = 0;              // seconds; of the thread
  std::atomic<int64_t> refused_ = 0;     // atomic, because anyone may ask

  std::thread thread_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_CONNECTION_ACCEPTOR_H_
