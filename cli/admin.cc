// eps checkpoint, eps stop: one call to a daemon each.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "cli/daemon_client.h"
#include "common/base/status_macros.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kCheckpointTimeout = absl::Hours(6);  // a large state on a slow disk
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

absl::Status RunCheckpoint(DaemonClient& client, const std::string& out) {
  EPS_ASSIGN_OR_RETURN(const proto::CheckpointReply reply, client.Checkpoint(kCheckpointTimeout));
  std::printf("%s\n", CheckpointPath(out, reply.path()).c_str());
  return absl::OkStatus();
}

absl::Status RunStop(DaemonClient& client, const std::string& reason) {
  EPS_ASSIGN_OR_RETURN(const proto::StopReply reply, client.Stop(reason, kStopTimeout));
  if (reply.evaluates()) {
    std::printf("the evaluation ends, with nothing to say\n");
  } else {
    std::printf("the run ends after step %lld, with a checkpoint\n", static_cast<long long>(reply.step()));
  }
  return absl::OkStatus();
}

}  // namespace

void AddCheckpoint(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "checkpoint",
      "Takes a checkpoint of a run in progress, after the present step; prints its path when it is on disk");
  auto flags = std::make_shared<DaemonFlags>();
  flags->AddTo(*command);
  command->callback([flags, exit_code] {
    *exit_code = flags->Run([&](DaemonClient& client) { return RunCheckpoint(client, flags->out); });
  });
}

void AddStop(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("stop", "Ends a run after the present step, with a checkpoint; it can be resumed");
  auto flags = std::make_shared<DaemonFlags>();
  auto reason = std::make_shared<std::string>("eps stop");
  flags->AddTo(*command);
  command->add_option("--reason", *reason, "For the log")->type_name("TEXT")->capture_default_str();
  command->callback([flags, reason, exit_code] {
    *exit_code = flags->Run([&](DaemonClient& client) { return RunStop(client, *reason); });
  });
}

}  // namespace eps::cli
