// eps status: where a run stands.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "cli/daemon_client.h"
#include "cli/run_report.h"
#include "cli/status_text.h"
#include "common/base/exit_code.h"
#include "common/base/status_macros.h"
#include "common/grpc/proto_text.h"
#include "google/protobuf/util/json_util.h"

namespace eps::cli {
namespace {

absl::Status AskDaemon(DaemonClient& client, const std::string& out, bool json) {
  EPS_ASSIGN_OR_RETURN(proto::StatusReply status, client.Status(absl::Seconds(10)));
  status.set_newest_checkpoint(ProtoText(CheckpointPath(out, status.newest_checkpoint())));
  if (!json) {
    std::printf("%s", StatusText(status).c_str());
    return absl::OkStatus();
  }
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(status, &text, options).ok()) {
    return absl::InternalError("the daemon's answer cannot be written as JSON");
  }
  std::printf("%s", text.c_str());
  return absl::OkStatus();
}

int RunStatus(const DaemonFlags& flags, bool json) {
  if (!flags.IsOfFinishedRun()) {
    if (json && flags.HasNoDaemon()) std::printf("%s", NotRunningJson(flags.out).c_str());
    return flags.Run([&](DaemonClient& client) { return AskDaemon(client, flags.out, json); });
  }
  std::printf("%s", json ? FinishedJson(flags.out).c_str() : absl::StrCat(FinishedText(flags.out), "\n").c_str());
  return kExitDone;
}

}  // namespace

void AddStatus(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("status", "Where a run stands: progress, workers, memory, waits");
  auto flags = std::make_shared<DaemonFlags>();
  auto json = std::make_shared<bool>(false);
  flags->AddTo(*command);
  command->add_flag("--json", *json, "As JSON, field names as in proto/control.proto");
  command->footer(
      "Of a run in DIR that has done all of its steps it says where it ended, and ends with 0; of one that has failed, "
      "why, "
      "and ends with 1.");
  command->callback([flags, json, exit_code] { *exit_code = RunStatus(*flags, *json); });
}

}  // namespace eps::cli
