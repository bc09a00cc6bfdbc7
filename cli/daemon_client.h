#ifndef EPS_CLI_DAEMON_CLIENT_H_
#define EPS_CLI_DAEMON_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/grpc/doors.h"
#include "grpcpp/security/credentials.h"
#include "proto/control.grpc.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps::cli {

// Other users of this machine reach loopback too: a new token in the run's folder, which only this user can read, keeps
// them out of a daemon that is given it. Takes the place of an older one. Returns what opens the daemon's doors.
// Errors: the system's
absl::StatusOr<ClientDoors> WriteRunToken(const std::string& out);

// A connection to the control plane. Copies share it.
//
// Threads: safe, as the stub is; each call blocks its caller
class DaemonClient {
 public:
  // Without credentials in plaintext.
  explicit DaemonClient(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

  // A connection that breaks is made once more: a daemon that has just started closes those from before.
  // Errors: UNAVAILABLE nobody listens · DEADLINE_EXCEEDED saying for how long nobody answered · the daemon's
  absl::StatusOr<proto::StatusReply> Status(absl::Duration timeout);
  // The same for who starts the daemon's workers.
  absl::StatusOr<proto::StatusReply> FollowOrders(const proto::WorkerStarter& starter, absl::Duration timeout);
  absl::Status ExpectWorkers(int workers, absl::Duration timeout);
  absl::StatusOr<proto::CheckpointReply> Checkpoint(absl::Duration timeout);
  absl::StatusOr<proto::StopReply> Stop(const std::string& reason, absl::Duration timeout);
  absl::Status Drain(absl::Span<const int64_t> workers, absl::Duration timeout);
  // The order's number.
  absl::StatusOr<int64_t> StartWorkers(int workers, absl::Duration timeout);
  proto::Control::Stub& stub() { return *stub_; }

 private:
  std::shared_ptr<proto::Control::Stub> stub_;
};

// Where a command finds its daemon: --connect HOST:PORT, or --out DIR of a run.
struct DaemonFlags {
  std::string connect;
  std::string out;

  ClientDoors doors;

  void AddTo(CLI::App& command);
  // With --out alone it also shows the token that `eps train` has left there.
  // Errors: ReadEndpointFile's, NewChannelCredentials' · UNAVAILABLE no daemon runs for --out, and where the run stands ·
  //         ABORTED one has the folder, and no file says where it listens
  absl::StatusOr<DaemonClient> Client() const;

  // Whether `out` is given, and no daemon is at work on its run: nobody is to be asked, and run_report.h says where it
  // stands.
  bool HasNoDaemon() const;
  // The same where no `eps train` has the folder either, which may start a daemon again.
  bool IsOver() const;
  // The same of a run that has done all of its steps, and did not fail.
  bool IsOfFinishedRun() const;

  // Why a daemon that was found did not answer, and what to do: that its run is over, that it hangs, or the doors that it
  // may want.
  absl::Status Explain(const absl::Status& status) const;

  // A whole command: does `command` with the client, prints an error, and returns the exit code. What the daemon
  // answers is never bad input: of a `command` that began every error is kExitFailed.
  int Run(const std::function<absl::Status(DaemonClient&)>& command) const;
};

}  // namespace eps::cli

#endif  // EPS_CLI_DAEMON_CLIENT_H_
