#ifndef EPS_CLI_SAMPLING_SERVER_H_
#define EPS_CLI_SAMPLING_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "cli/signal_queue.h"
#include "common/grpc/doors.h"
#include "proto/control.pb.h"

namespace eps::cli {

// A daemon that serves a checkpoint and a worker, in a folder of their own; all of it ends with this object.
//
// Threads: one at a time
class SamplingServer {
 public:
  // For texts of `text_tokens` tokens, the prompt's included. set: eps_server's --set. `signals` outlives the server.
  // Errors: the programs' own, by their exit codes · CANCELLED a signal came · DEADLINE_EXCEEDED · the system's
  static absl::StatusOr<std::unique_ptr<SamplingServer>> Start(const std::string& checkpoint,
                                                               const std::vector<std::string>& set, int64_t text_tokens,
                                                               const WorkerFlags& flags, SignalQueue& signals);
  ~SamplingServer();

  // Calls `take` with each token as it comes, until it returns false.
  // Errors: the daemon's · what became of a process · CANCELLED a signal came
  absl::Status Generate(const proto::GenerateRequest& request,
                        const std::function<bool(const proto::GenerateReply&)>& take);

 private:
  explicit SamplingServer(SignalQueue& signals) : signals_(signals) {}

  absl::Status StartDaemon(const std::string& programs, const std::string& checkpoint,
                           const std::vector<std::string>& set, int64_t text_tokens);
  // Waits up to `timeout` for a signal. OK while both live and none came; else why one ended, with the code of its
  // exit, or CANCELLED.
  absl::Status Check(absl::Duration timeout);
  absl::Status Connect();

  SignalQueue& signals_;
  std::string folder_;
  std::string address_;
  ClientDoors doors_;
  ChildProcess daemon_;
  ChildProcess worker_;
  std::optional<DaemonClient> client_;  // since Start
};

}  // namespace eps::cli

#endif  // EPS_CLI_SAMPLING_SERVER_H_
