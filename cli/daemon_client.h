#ifndef EPS_CLI_DAEMON_CLIENT_H_
#define EPS_CLI_DAEMON_CLIENT_H_

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control.grpc.pb.h"

namespace eps::cli {

// The daemon's address and process, as it writes them to OUT/endpoints.json once it listens.
struct Endpoint {
  std::string address;  // HOST:PORT
  int64_t process_id = 0;
};
// Errors: NOT_FOUND no such file · INVALID_ARGUMENT naming the file and field
absl::StatusOr<Endpoint> ReadEndpoint(const std::string& out);

// Where a command finds its daemon: --connect HOST:PORT, or --out DIR of a run.
struct DaemonFlags {
  std::string connect;
  std::string out;

  void AddTo(CLI::App& command);
  absl::StatusOr<std::string> Address() const;
};

// A connection to the control plane. Copies share it.
class DaemonClient {
 public:
  explicit DaemonClient(const std::string& address);

  // Errors: UNAVAILABLE nobody listens · DEADLINE_EXCEEDED · the daemon's
  absl::StatusOr<proto::StatusReply> Status(absl::Duration timeout);
  absl::Status ExpectWorkers(int workers, absl::Duration timeout);
  absl::StatusOr<proto::CheckpointReply> Checkpoint(absl::Duration timeout);
  absl::StatusOr<proto::StopReply> Stop(const std::string& reason, absl::Duration timeout);
  proto::Control::Stub& stub() { return *stub_; }

 private:
  std::shared_ptr<proto::Control::Stub> stub_;
};

}  // namespace eps::cli

#endif  // EPS_CLI_DAEMON_CLIENT_H_
