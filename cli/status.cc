// eps status: where a run stands.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/daemon_client.h"
#include "cli/progress.h"
#include "cli/run_report.h"
#include "common/base/byte_size.h"
#include "common/base/exit_code.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace eps::cli {
namespace {

void Line(const char* what, const std::string& value) { std::printf("%-20s %s\n", what, Printable(value).c_str()); }

void PrintForPeople(const proto::StatusReply& status) {
  Line("state", status.failure().empty() ? status.state() : absl::StrCat(status.state(), ": ", status.failure()));
  if (status.has_start_work()) {  // nothing else is known yet
    const std::string work = FormatStartWork(status);
    Line("at work on", work.empty() ? "nothing that takes long yet" : work);
    return;
  }
  const bool has_done_one = status.last_step_seconds() > 0;  // in this sitting
  Line("step", absl::StrCat(status.step(), " of ", status.steps(), ", eta ", FormatEta(status.eta_seconds())));
  if (const std::string long_step = FormatLongStep(status); !long_step.empty()) Line("at work on", long_step);
  if (status.step() > 0) {
    Line("loss", absl::StrCat(status.loss(), " nats a token; gradient norm ",
                              Known(status.gradient_norm() >= 0, absl::StrCat(status.gradient_norm())),
                              ", learning rate ", status.learning_rate()));
  } else {
    Line("loss", "-");
  }
  if (status.has_evaluation()) {
    Line("evaluation", absl::StrCat(status.evaluation().loss(), " nats a token after step ", status.evaluation().step(),
                                    "; accuracy ", status.evaluation().accuracy(), " of ", status.evaluation().tokens(),
                                    " tokens, ", FormatSeconds(status.evaluation().seconds())));
  }
  Line("speed",
       absl::StrCat(Known(has_done_one, absl::StrCat(static_cast<int64_t>(status.tokens_per_second()))), " tokens/s, ",
                    Known(status.model_flops_per_second() > 0, FormatFlopRate(status.model_flops_per_second())),
                    " of the model, ", status.tokens(), " tokens in all"));
  Line("compute waits for", Known(has_done_one, FormatWaits(status)));
  if (const std::string wait = FormatStepWait(status); !wait.empty()) Line("this step waits for", wait);
  Line("model", absl::StrCat(status.parameters(), " parameters, state ", FormatByteSize(status.model_state_bytes())));
  Line("daemon memory", absl::StrCat(FormatByteSize(status.resident_bytes()), " resident; contributions ",
                                     FormatByteSize(status.contribution_window_used_bytes()), " of ",
                                     FormatByteSize(status.contribution_window_bytes())));
  Line("newest checkpoint", status.newest_checkpoint().empty() ? "none" : status.newest_checkpoint());
  if (status.checkpoint_failures() > 0) {
    Line("checkpoints failed",
         absl::StrCat(
             status.checkpoint_failures(), " of this sitting; the newest ",
             status.checkpoint_error().empty() ? "was written" : absl::StrCat("failed: ", status.checkpoint_error())));
  }
  if (const std::string order = FormatStartOrder(status); !order.empty()) Line("workers", order);
  for (const proto::WorkerStatus& worker : status.workers()) {
    Line(absl::StrCat("worker ", worker.worker_id()).c_str(),
         absl::StrCat(worker.state(), ", ", worker.device_name(),
                      worker.device_model().empty() ? "" : absl::StrCat(" (", worker.device_model(), ")"), ", pid ",
                      worker.process_id(), worker.host_name().empty() ? "" : absl::StrCat(" on ", worker.host_name()),
                      worker.transport().empty() ? "" : absl::StrCat(", over ", worker.transport()),
                      worker.group_members() == 0 ? ""
                                                  : absl::StrCat(", in worker ", worker.group_founder(), "'s group of ",
                                                                 worker.group_members()),
                      ", vnodes {", absl::StrJoin(worker.vnodes(), ","), "}, device ",
                      FormatByteSize(worker.device_peak_bytes()), " of ", FormatByteSize(worker.device_cap_bytes()),
                      ", last pass ", Known(worker.pass_seconds() > 0, FormatSeconds(worker.pass_seconds())),
                      worker.metrics_address().empty() ? "" : absl::StrCat(", page ", worker.metrics_address())));
  }
}

absl::Status AskDaemon(DaemonClient& client, bool json) {
  EPS_ASSIGN_OR_RETURN(const proto::StatusReply status, client.Status(absl::Seconds(10)));
  if (!json) {
    PrintForPeople(status);
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
  if (json && flags.HasNoDaemon() && !IsFinished(flags.out)) std::printf("%s", NotRunningJson(flags.out).c_str());
  if (!flags.IsOfFinishedRun()) return flags.Run([&](DaemonClient& client) { return AskDaemon(client, json); });
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
  command->footer("Of a run in DIR that has done all of its steps it says where it ended, and ends with 0.");
  command->callback([flags, json, exit_code] { *exit_code = RunStatus(*flags, *json); });
}

}  // namespace eps::cli
